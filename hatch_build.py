"""Compile the inner loops of report and merge into the wheel; without a C compiler they run in Python.

`tools/wheels` sets IOTRACE_WHEEL_PLATFORM to the platform tag of the wheel, and CC to a compiler for it.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_LIBRARY = "src/iotrace/_compiled.so"
# Preloaded into every traced process: apart, as their functions must be nobody else's there.
_RECORDER = "src/iotrace/_posix_recorder.so"
_RECORDER_SOURCES = "src/iotrace/capture"
_GUARD = "src/iotrace/_posix_guard.so"
_GUARD_SOURCES = "src/iotrace/launch"
_LIBRARIES = (_LIBRARY, _RECORDER, _GUARD)


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to a wheel, or puts it into the source tree for an editable install."""

    PLUGIN_NAME = "compile"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel. Hatchling calls this before it puts a wheel together.

        Raises:
            RuntimeError: a platform was asked for, and its compiler failed.
        """
        asked = os.environ.get("IOTRACE_WHEEL_PLATFORM", "")
        try:
            self._compile()
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            if asked:
                raise RuntimeError(f"no library for {asked}: {why}") from error
            for library in _LIBRARIES:
                Path(self.root, library).unlink(missing_ok=True)
            self.app.display_warning(
                f"no C compiler ({why}): iotrace sees no POSIX calls, and reads and merges traces more slowly"
            )
            return
        build_data["artifacts"] += [name for name in _LIBRARIES if Path(self.root, name).exists()]
        # The libraries do not use Python's C API: any version of Python on this platform can load it.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{asked or _own_platform()}"

    def _compile(self) -> None:
        root = Path(self.root)
        sources = sorted(str(path.relative_to(root)) for path in root.glob("src/iotrace/**/*.c"))
        rooms = sorted({os.path.dirname(source) for source in sources})
        recorder = [source for source in sources if os.path.dirname(source) == _RECORDER_SOURCES]
        guard = [source for source in sources if os.path.dirname(source) == _GUARD_SOURCES]
        others = [source for source in sources if source not in (*recorder, *guard)]
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        command = [*shlex.split(compiler), "-O2", "-shared", "-fPIC", *(f"-I{room}" for room in rooms)]
        libraries = {_LIBRARY: others, _GUARD: guard}
        if _has_glibc(os.environ.get("IOTRACE_WHEEL_PLATFORM", "")):
            # Bound at once: a first call in a handler on a small stack would have no room for that.
            libraries[_RECORDER] = [*recorder, "-fvisibility=hidden", "-Wl,-z,now", "-ldl"]
        else:
            Path(root, _RECORDER).unlink(missing_ok=True)
        for name, parts in libraries.items():
            library = root / name
            made = library.with_suffix(".made")  # a process may have the old library loaded
            line = [*command, "-o", str(made), *parts]
            subprocess.run(line, cwd=root, check=True, capture_output=True, text=True)
            made.replace(library)


def _has_glibc(asked: str) -> bool:
    """Say whether the recorder works there: it wraps glibc's functions, by their names."""
    return asked.startswith("manylinux") if asked else platform.libc_ver()[0] == "glibc"


def _own_platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
