"""Set up dftracer, preloaded for POSIX calls: its settings, and the path prefixes that it traces.

dftracer compares a path as the program spelled it with a list of prefixes. The data may lie anywhere, so the
list holds everything but the system and Python: relative paths by their first character, absolute ones by
the complement of what is left out. A match costs the same for one prefix as for two thousand.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import string
import sys
from dataclasses import dataclass
from pathlib import Path

from iotrace.errors import LaunchError
from iotrace.launch import child
from iotrace.launch.preloads import wraps_calls
from iotrace.session.names import OFF

_SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"}
    | {"proc", "run", "sbin", "snap", "sys", "usr"}
)
# What a name may begin with: printable ASCII but the two separators, and the first bytes of UTF-8.
_FIRST_CHARACTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - {"/", ":"})) + " "
_FIRST_CHARACTERS += bytes(range(0xC2, 0xF5)).decode("ascii", "surrogateescape")
# Linux starts no program with a variable of 128 KiB.
_MOST_BYTES = 96 << 10


@dataclass(frozen=True)
class PosixCapture:
    """Whether POSIX calls are traced, else why not and what would help.

    `guard` is the library that keeps dftracer from harming the program (`posix_guard.c`); empty: none.
    """

    library: str
    prefixes: tuple[str, ...] = ()
    why_not: str = ""
    remedy: str = ""
    guard: str = ""


def plan(program: str, only: list[str]) -> PosixCapture:
    """Decide what to trace of `program`: all but the system and Python, or the paths in `only`.

    The word `OFF` alone stands for no path: nothing is traced.
    """
    if only == [OFF]:
        return PosixCapture("", why_not="switched off by --io off", remedy="run it without --io off")
    library, why_not, remedy = _find_library()
    if why_not:
        return PosixCapture("", (), why_not, remedy)
    prefixes = spellings(only) if only else everything_but([*python_directories(program), *_own_python()])
    guard = str(Path(__file__).parents[1] / "_posix_guard.so")
    return PosixCapture(library, tuple(prefixes), guard=guard if _preloads(guard) else "")


def _find_library() -> tuple[str, str, str]:
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return "", f"dftracer has no build for {machine}", "run on x86_64 Linux to see POSIX calls"
    if not os.path.exists("/proc/self/cmdline"):  # dftracer 2.2.0 crashes the program then
        return "", "dftracer needs /proc, which is not mounted here", "mount -t proc proc /proc"
    if None in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        why = "a standard stream is closed: dftracer's log would take its number, and what the program writes"
        return "", why, "redirect it to or from /dev/null"
    if wrapper := wraps_calls(os.environ.get("LD_PRELOAD", "")):
        why = f"{wrapper} is preloaded and wraps calls as dftracer does: both together may crash the program"
        return "", why, "unset LD_PRELOAD, or leave that library out of it"
    found = importlib.util.find_spec("dftracer")
    for directory in (found.submodule_search_locations or []) if found else []:
        library = Path(directory) / "lib64" / "libdftracer_preload.so"
        if library.exists():
            if _preloads(str(library)):
                return str(library), "", ""
            why = f"the path of dftracer's library has a blank or a colon: {library}"
            return "", why, "install iotrace-agent into an environment whose path has none"
    return "", "dftracer is not installed", "pip install dftracer==2.2.0"


def _preloads(library: str) -> bool:
    """Say whether the library is there, and LD_PRELOAD can name it: it is split at blanks and colons."""
    return os.path.exists(library) and not set(" :\t\n") & {*library}


def environment(capture: PosixCapture, directory: Path, inherited: str) -> dict[str, str]:
    """Return the variables that switch dftracer on; `inherited` is the LD_PRELOAD before.

    Each value is argued in docs/reliability.md; DFTRACER_BIND_SIGNALS stays unset, as it changes exit
    codes.
    """
    return {
        # First: libfaketime before dftracer segfaults with torch, the other way round works. The guard stands
        # behind dftracer, hence it begins before.
        "LD_PRELOAD": ":".join(filter(None, [capture.library, capture.guard, inherited])),
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_INC_METADATA": "1",
        "DFTRACER_TRACE_COMPRESSION": "0",
        "DFTRACER_WRITE_BUFFER_SIZE": "4096",
        "DFTRACER_DATA_DIR": ":".join(capture.prefixes),
        "DFTRACER_LOG_FILE": str(directory / "io"),
    }


def spellings(paths: list[str]) -> list[str]:
    """Return each path as a program may spell it: as given, relative, absolute, with its links resolved."""
    found: dict[str, None] = {}
    for path in paths:
        if ":" in path:
            raise LaunchError(
                f"--io {path}: dftracer cannot match a path with a colon", "name a directory above it"
            )
        relative = os.path.relpath(path)
        given = [path, os.path.normpath(path), os.path.abspath(path), os.path.realpath(path)]
        if relative == ".":
            given = [*given[2:], *_FIRST_CHARACTERS]
        elif not relative.startswith("../"):
            given += [relative, f"./{relative}"]
        found.update(dict.fromkeys(given))
    return list(found)


def everything_but(excluded: list[str]) -> list[str]:
    """Return prefixes that match every path but those below the system's directories and below `excluded`.

    A name that does not exist yet and begins like an excluded neighbour is missed. Where all of it is too
    long for a variable, the last of `excluded` are traced, too: the command would not start at all.
    """
    prefixes = _prefixes_but(excluded)
    while excluded and sum(len(os.fsencode(prefix)) + 1 for prefix in prefixes) > _MOST_BYTES:
        excluded = excluded[:-1]
        prefixes = _prefixes_but(excluded)
    return prefixes


def _prefixes_but(excluded: list[str]) -> list[str]:
    whole = {os.path.abspath(path) for path in excluded} | {os.path.realpath(path) for path in excluded}
    left_out: dict[str, set[str]] = {"/": set(_SYSTEM)}
    for path in whole:
        parent, name = os.path.split(path)
        while name:
            left_out.setdefault(parent, set()).add(name)
            parent, name = os.path.split(parent)
    prefixes = list(_FIRST_CHARACTERS)
    # An excluded directory's own neighbours are listed where nothing above it is excluded whole.
    whole |= {f"/{name}" for name in _SYSTEM}
    for directory, names in sorted(left_out.items()):
        if any(directory == root or directory.startswith(f"{root}/") for root in whole):
            continue
        base = directory.rstrip("/") + "/"
        first = {name[0] for name in names}
        prefixes += [base + character for character in _FIRST_CHARACTERS if character not in first]
        prefixes += [base + name for name in _neighbours(directory, names, first)]
    return prefixes


def _neighbours(directory: str, names: set[str], first: set[str]) -> list[str]:
    """Return what tells the entries of `directory` beside `names` that begin as one of them does from them.

    Of thousands of entries with names alike that is a few prefixes.
    """
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name[0] in first]
    except OSError:
        return []
    found = set()
    for entry in entries:
        if entry.name in names or ":" in entry.name:
            continue
        spelling = f"{entry.name}/" if os.path.isdir(entry.path) else entry.name
        shared = max(len(os.path.commonprefix([spelling, f"{name}/"])) for name in names)  # noqa: RUF071
        if shared < len(spelling):
            found.add(spelling[: shared + 1])
    return sorted(found)


def _own_python() -> list[str]:
    """Return the directories that iotrace runs from: their files are no data."""
    roots = {sys.prefix, sys.base_prefix, str(Path(__file__).parents[1])}
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
