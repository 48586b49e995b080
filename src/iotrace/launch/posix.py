"""Choose who traces POSIX calls, what of: our recorder by default, or dftracer; what each has to be told.

Files of the system and of Python are no data. The recorder is told what to leave out; dftracer takes prefixes
of what to trace (`dftracer_prefixes`).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iotrace.errors import LaunchError
from iotrace.launch import child
from iotrace.launch.dftracer_prefixes import SYSTEM, everything_but, spellings
from iotrace.launch.preloads import wraps_calls
from iotrace.session.names import (
    DFTRACER,
    OFF,
    POSIX_FILTERS_VARIABLE,
    POSIX_ONLY_VARIABLE,
    POSIX_SKIP_VARIABLE,
    POSIX_VARIABLE,
    RECORDER,
)

_PACKAGE = Path(__file__).parents[1]
# A program built with a sanitizer ends at its start where any library is preloaded, unless it is told not to
# look. ThreadSanitizer sees what the recorder copies, and not what keeps its threads apart.
_ASAN_OPTIONS = "verify_asan_link_order=0"


@dataclass(frozen=True)
class PosixCapture:
    """Whether POSIX calls are traced and `by` whom, else why not and what would help.

    `preloads` are the libraries, in order; `variables` say what is traced.
    """

    by: str
    preloads: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    why_not: str = ""
    remedy: str = ""


def plan(program: str, only: list[str], by: str = RECORDER) -> PosixCapture:
    """Decide what to trace of `program`: all but the system and Python, or the paths in `only`.

    The word `OFF` alone stands for no path: nothing is traced.
    """
    if only == [OFF]:
        return PosixCapture(by, why_not="switched off by --io off", remedy="run it without --io off")
    if by == DFTRACER:
        return _by_dftracer(program, only)
    library = str(_PACKAGE / "_posix_recorder.so")
    if not os.path.exists(library):
        system, libc = platform.system(), platform.libc_ver()[0]
        if system != "Linux" or libc != "glibc":
            why = f"the recorder needs Linux with glibc, and this is {system}" + (" without" if libc else "")
            return PosixCapture(by, why_not=why, remedy="run it where the C library is glibc")
        why = "the recorder was not compiled: there was no C compiler when iotrace was installed"
        return PosixCapture(by, why_not=why, remedy="install a C compiler, then iotrace-agent anew")
    if why := _unloadable(library):
        return PosixCapture(by, why_not=why, remedy=_MOVE)
    if only:
        variables = {POSIX_ONLY_VARIABLE: ":".join(_resolved(only)), POSIX_SKIP_VARIABLE: ""}
    else:
        left_out = [*sorted(f"/{name}" for name in SYSTEM), *python_directories(program), *_own_python()]
        variables = {POSIX_SKIP_VARIABLE: ":".join(_resolved(left_out)), POSIX_ONLY_VARIABLE: ""}
    return PosixCapture(by, (library,), variables)


_MOVE = "install iotrace-agent into an environment whose path has none"


def _unloadable(library: str) -> str:
    """Say why LD_PRELOAD, which is split at blanks and colons, cannot name the library; empty: it can."""
    if not set(" :\t\n") & {*library}:
        return ""
    return f"the path of the library has a blank or a colon: {library}"


def _resolved(paths: list[str]) -> list[str]:
    """Return each path absolute, as it is spelled and with its links resolved."""
    found: dict[str, None] = {}
    for path in paths:
        if ":" in path:
            raise LaunchError(
                f"--io {path}: a path with a colon cannot be named", "name a directory above it"
            )
        found.update(dict.fromkeys((os.path.abspath(path), os.path.realpath(path))))
    return list(found)


def _by_dftracer(program: str, only: list[str]) -> PosixCapture:
    library, why_not, remedy = _find_dftracer()
    guard = str(_PACKAGE / "_posix_guard.so")
    if not why_not and not os.path.exists(guard):
        why_not = "the library that keeps dftracer from harming a program was not compiled: no C compiler"
        remedy = "install a C compiler, then iotrace-agent anew"
    if not why_not:
        why_not, remedy = _unloadable(guard), _MOVE
    if why_not:
        return PosixCapture(DFTRACER, why_not=why_not, remedy=remedy)
    prefixes = spellings(only) if only else everything_but([*python_directories(program), *_own_python()])
    # Each value is argued in docs/reliability.md; DFTRACER_BIND_SIGNALS stays unset, as it changes exit
    # codes.
    return PosixCapture(
        DFTRACER,
        (library, guard),  # the guard stands behind dftracer, hence it begins before
        {
            "DFTRACER_ENABLE": "1",
            "DFTRACER_INIT": "PRELOAD",
            "DFTRACER_INC_METADATA": "1",
            "DFTRACER_TRACE_COMPRESSION": "0",
            "DFTRACER_WRITE_BUFFER_SIZE": "4096",
            "DFTRACER_DATA_DIR": ":".join(prefixes),
        },
    )


def _find_dftracer() -> tuple[str, str, str]:
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return "", f"dftracer has no build for {machine}", "leave --io-by dftracer out"
    if not os.path.exists("/proc/self/cmdline"):  # dftracer 2.2.0 crashes the program then
        return "", "dftracer needs /proc, which is not mounted here", "mount -t proc proc /proc"
    if wrapper := wraps_calls(os.environ.get("LD_PRELOAD", "")):
        why = f"{wrapper} is preloaded and wraps calls as dftracer does: both together may crash the program"
        return "", why, "unset LD_PRELOAD, or leave that library out of it"
    found = importlib.util.find_spec("dftracer")
    for directory in (found.submodule_search_locations or []) if found else []:
        library = Path(directory) / "lib64" / "libdftracer_preload.so"
        if library.exists():
            why = _unloadable(str(library))
            return (str(library), "", "") if not why else ("", why, _MOVE)
    return "", "dftracer is not installed", "pip install dftracer==2.2.0"


def environment(
    capture: PosixCapture, directory: Path, inherited: dict[str, str], own: Sequence[Path] = ()
) -> dict[str, str]:
    """Return the variables that switch the tracer on, to write to `directory`.

    `inherited` are those before; `own` are directories whose files are not the program's.
    """
    # Ours first: libfaketime before dftracer segfaults with torch, the other way round works.
    preloads = ":".join(filter(None, [*capture.preloads, inherited.get("LD_PRELOAD", "")]))
    traced = {
        **capture.variables,
        "LD_PRELOAD": preloads,
        "ASAN_OPTIONS": ":".join(filter(None, [inherited.get("ASAN_OPTIONS"), _ASAN_OPTIONS])),
    }
    if capture.by == DFTRACER:
        return {**traced, "DFTRACER_LOG_FILE": str(directory / "io")}
    left_out = map(str, (directory, *own))
    skipped = ":".join(filter(None, [capture.variables[POSIX_SKIP_VARIABLE], *left_out]))
    return {
        **traced,
        POSIX_VARIABLE: str(directory),
        POSIX_SKIP_VARIABLE: skipped,
        POSIX_FILTERS_VARIABLE: str(_filters()),
    }


def _filters() -> int:
    """Count the filters of system calls (seccomp) of this process; of an older kernel, whether it has one."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    rows = dict(line.partition(":\t")[::2] for line in status.splitlines())
    return int(rows.get("Seccomp_filters", rows.get("Seccomp", "0")))


def _own_python() -> list[str]:
    """Return the directories that iotrace runs from: their files are no data."""
    roots = {sys.prefix, sys.base_prefix, str(_PACKAGE)}
    return sorted(root for root in roots if root not in ("/", "/usr"))


def python_directories(program: str) -> list[str]:
    """Return the installation of the interpreter that `program` is, or names in its ``#!``."""
    name, found = child.script_interpreter(program, os.environ.get("PATH"))
    directories: dict[str, None] = {}
    for interpreter in filter(None, [program, found or name]):
        for path in {os.path.abspath(interpreter), os.path.realpath(interpreter)}:
            root = os.path.dirname(os.path.dirname(path))
            if any(Path(root).glob("lib/python3*")):
                directories[root] = None
                directories.update(dict.fromkeys(_base_of_venv(root)))
    return [directory for directory in directories if directory not in ("/", "/usr")]


def _base_of_venv(root: str) -> list[str]:
    try:
        homes = re.findall(r"^\s*home\s*=\s*(.*\S)", Path(root, "pyvenv.cfg").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return []
    return [os.path.dirname(path) for home in homes for path in (home, os.path.realpath(home))]
