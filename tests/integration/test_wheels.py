"""Wheels: what they hold, how they are tagged, and that their library loads where the tag says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.runs import PROJECT

MUSL_LOADER = Path("/lib/ld-musl-x86_64.so.1")
LIBRARY = "iotrace/_compiled.so"
GUARD = "iotrace/_posix_guard.so"


def copy_sources(directory: Path) -> Path:
    """A build compiles into its source tree, and the suite runs from ours."""
    project = directory / "project"
    project.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, project)
    ignored = shutil.ignore_patterns("__pycache__", "_compiled.*", "_posix_guard.*")
    shutil.copytree(PROJECT / "src", project / "src", ignore=ignored)
    return project


def build(project: Path, output: Path, kind: str = "--wheel", **variables: str) -> tuple[Path, str]:
    """What was built, and what was printed meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "build", kind, "--no-isolation", "-o", str(output), str(project)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    (made,) = output.glob("*.whl" if kind == "--wheel" else "*.tar.gz")
    return made, done.stdout + done.stderr


def needs(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")


@pytest.mark.parametrize("compiler", ["cc", "/no/such/compiler"])
def test_the_wheel_is_typed_and_carries_its_way_in(tmp_path: Path, compiler: str) -> None:
    if compiler == "cc":
        needs(compiler)
    wheel, printed = build(copy_sources(tmp_path), tmp_path / "out", CC=compiler)
    contents = zipfile.ZipFile(wheel).namelist()
    compiled = compiler == "cc"
    assert (LIBRARY in contents) == (GUARD in contents) == compiled
    assert wheel.name.endswith("-py3-none-any.whl") != compiled
    assert ("reads and merges traces more slowly" in printed) != compiled
    assert wheel.name.startswith("iotrace_agent-")
    assert "iotrace_agent.pth" in contents
    assert "iotrace/py.typed" in contents
    assert "iotrace/agent/shim/sitecustomize.py" in contents
    assert not [name for name in contents if name.startswith(("tests/", "workloads/"))]


@pytest.mark.parametrize(
    ("platform", "compiler"),
    # Linked against no C library, it finds musl's under any name.
    [("manylinux2014_x86_64", "cc"), ("musllinux_1_2_x86_64", "musl-gcc -nostdlib")],
)
def test_the_library_needs_no_more_than_its_tag_allows(tmp_path: Path, platform: str, compiler: str) -> None:
    needs(compiler.split()[0])
    if os.uname().machine != "x86_64":
        pytest.skip("the compilers here make no programs for x86_64")
    wheel, _ = build(copy_sources(tmp_path), tmp_path / "out", CC=compiler, IOTRACE_WHEEL_PLATFORM=platform)
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    # auditwheel judges independently of our build; it calls manylinux2014 by its newer name, too.
    shown = subprocess.check_output([sys.executable, "-m", "auditwheel", "show", str(wheel)], text=True)
    assert any(f'"{name}"' in shown for name in (platform, platform.replace("2014", "_2_17"))), shown
    if platform.startswith("manylinux"):
        install_and_load(wheel, tmp_path)
    elif MUSL_LOADER.exists():
        load_by_musl(wheel, tmp_path)


def install_and_load(wheel: Path, directory: Path) -> None:
    """In a venv of its own, offline; its dependencies are those of the suite's environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")], check=True)
    python = directory / "venv" / "bin" / "python"
    options = ["-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*pip, *options, str(wheel)], check=True)
    (site,) = (directory / "venv" / "lib").glob("python*/site-packages")
    # A directory that a .pth names has its own .pth files left alone: our editable install is not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = "import iotrace, iotrace.compiled as c; print(iotrace.__file__, c.library() is not None)"
    shown = subprocess.check_output([str(python), "-c", code], text=True, cwd=directory)
    assert shown.split() == [str(site / "iotrace" / "__init__.py"), "True"]
    assert subprocess.run([str(python), "-m", "iotrace", "--version"], cwd=directory).returncode == 0


LOAD = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int64_t (*interface)(void) = (int64_t (*)(void))dlsym(library, "iotrace_interface");
    printf("%lld", (long long)interface());
    return 0;
}
"""


def load_by_musl(wheel: Path, directory: Path) -> None:
    """By a program of musl's: this interpreter is glibc's."""
    library = zipfile.ZipFile(wheel).extract(LIBRARY, directory)
    source, program = directory / "load.c", directory / "load"
    source.write_text(LOAD)
    subprocess.run(["musl-gcc", "-o", str(program), str(source)], check=True)
    assert int(subprocess.check_output([str(MUSL_LOADER), str(program), library])) >= 1


def test_a_platform_that_cannot_be_compiled_for_is_an_error(tmp_path: Path) -> None:
    """A wheel must not be tagged for a platform without the library that the tag is about."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        build(
            copy_sources(tmp_path),
            tmp_path / "out",
            CC="/no/such/compiler",
            IOTRACE_WHEEL_PLATFORM="manylinux2014_x86_64",
        )
    assert "no library for manylinux2014_x86_64" in raised.value.stdout + raised.value.stderr


def test_the_sdist_holds_what_a_wheel_is_made_of(tmp_path: Path) -> None:
    sdist, _ = build(copy_sources(tmp_path), tmp_path / "out", "--sdist")
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (project,) = (tmp_path / "unpacked").iterdir()
    wheel, _ = build(project, tmp_path / "again", CC="/no/such/compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    sources = {path.relative_to(PROJECT) for path in (PROJECT / "src").rglob("*.[ch]")}
    assert sources <= {path.relative_to(project) for path in (project / "src").rglob("*.[ch]")}
