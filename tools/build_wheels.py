"""What ``tools/wheels`` does once it has a compiler: build for each platform, and check what was built."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
OUTPUT = PROJECT / "dist"
# The platform tag of each wheel, and zig's name of what it compiles for.
TARGETS = {
    "manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
_LIBRARY = "iotrace/_compiled.so"
_LOAD = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).iotrace_interface())"


def main(platforms: list[str]) -> int:
    """Build and check the wheels of `platforms`, or of all, and the sdist; returns the exit code."""
    unknown = [name for name in platforms if name not in TARGETS]
    if unknown:
        print(f"tools/wheels: no such platform: {unknown[0]}; known: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    OUTPUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        sources = _copy(Path(directory))
        _build(sources, "--sdist", os.environ.copy())
        for name in platforms or TARGETS:
            made = Path(directory) / name
            variables = {"CC": shlex.join(_compiler(TARGETS[name])), "IOTRACE_WHEEL_PLATFORM": name}
            _build(sources, "--wheel", {**os.environ, **variables}, made)
            (wheel,) = made.glob("*.whl")
            print(f"{wheel.name}: {_check(wheel, name)}", flush=True)
            shutil.copy(wheel, OUTPUT)
    return 0


def _compiler(target: str) -> list[str]:
    """The command that compiles for `target`.

    zig's musl is called libc.so, Alpine's is not. Linked against neither, the library takes the functions of
    the C library that its process has loaded anyway.
    """
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    if not target.endswith("-musl"):
        return command
    import ziglang

    headers = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
    return [
        *command,
        "-nostdlib",
        "-isystem",
        str(headers / target),
        "-isystem",
        str(headers / "generic-musl"),
    ]


def _copy(directory: Path) -> Path:
    """The sources, copied: a build compiles into its source tree, and the editable install uses that."""
    sources = directory / "sources"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=PROJECT, text=True)
    for name in filter(None, listed.split("\0")):
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, target)
    return sources


def _build(sources: Path, kind: str, environment: dict[str, str], output: Path = OUTPUT) -> None:
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "-o", str(output), str(sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tools/wheels: {kind[2:]} failed:\n{done.stdout}{done.stderr}")


def _check(wheel: Path, name: str) -> str:
    """Say what was checked of `wheel`; SystemExit where it does not hold."""
    if not wheel.name.endswith(f"-py3-none-{name}.whl"):
        raise SystemExit(f"{wheel.name} is not tagged {name}")
    if name.startswith("macosx"):
        return "built; neither checked nor run here"
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True, capture_output=True, text=True
    ).stdout
    # auditwheel calls manylinux2014 by its newer name, too.
    if not any(f'"{tag}"' in shown for tag in (name, name.replace("manylinux2014", "manylinux_2_17"))):
        raise SystemExit(f"auditwheel says of {wheel.name}:\n{shown}")
    if name != f"manylinux2014_{platform.machine()}" or platform.libc_ver()[0] != "glibc":
        return "its symbols are those that the tag allows (auditwheel); not run here"
    with tempfile.TemporaryDirectory() as directory:
        library = zipfile.ZipFile(wheel).extract(_LIBRARY, directory)
        subprocess.run([sys.executable, "-c", _LOAD, library], check=True, stdout=subprocess.DEVNULL)
    return "its symbols are those that the tag allows (auditwheel); loaded"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
