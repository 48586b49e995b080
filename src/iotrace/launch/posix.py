"""Choose who traces POSIX calls, and which: our recorder by default, or dftracer; what each has to know.

Files of the system and of Python are no data. The recorder gets what to leave out; dftracer takes prefixes
of what to trace (`dftracer_prefixes`).

Find libraries that are preloaded together with dftracer and wrap the same calls.

dftracer redirects the calls of every library, and what ``dlsym(RTLD_NEXT)`` returns. A library that looks
a call up when it is first used (Darshan does) gets dftracer's wrapper, which calls the library again: a
segmentation fault. Nothing tells such a library from one that looks it up as it is loaded, so neither meets
dftracer.

The path prefixes that dftracer traces.

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
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from iotrace.errors import LaunchError
from iotrace.launch import child
from iotrace.session.names import (
    DFTRACER,
    OFF,
    POSIX_FILTERS_VARIABLE,
    POSIX_ONLY_VARIABLE,
    POSIX_SKIP_VARIABLE,
    POSIX_VARIABLE,
    RECORDER,
)

_CALLS = frozenset(
    {b"open", b"open64", b"openat", b"openat64", b"close", b"read", b"write", b"pread", b"pread64", b"pwrite"}
    | {b"pwrite64", b"lseek", b"lseek64", b"fopen", b"fopen64", b"fread", b"fwrite", b"fclose"}
)
# Those of a run around this one, and what is wrapped.
_HARMLESS = ("libdftracer", "_posix_guard.", "libc.", "libpthread")
_FOR_ALL = Path("/etc/ld.so.preload")
# Of ELF, 64 bits, little-endian.
_HEADER = struct.Struct("<16x H H 20x Q 10x H H 2x")
_SECTION = struct.Struct("<4x I 16x Q Q I 12x Q")
_SYMBOL = struct.Struct("<I 2x H 16x")
_DYNAMIC_SYMBOLS = 11


def wraps_calls(inherited: str) -> str:
    """Return the first library of `inherited` (an LD_PRELOAD) or the system's that wraps dftracer's calls."""
    named = inherited
    with suppress(OSError):
        named += " " + _FOR_ALL.read_text(errors="surrogateescape")
    searched = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    for name in re.split(r"[ :\t\n]+", named):
        if os.path.basename(name).startswith(_HARMLESS):
            continue
        for path in [name] if "/" in name else [f"{directory}/{name}" for directory in searched]:
            with suppress(OSError, struct.error, ValueError):
                if _CALLS & set(_defined(Path(path).read_bytes())):
                    return name
    return ""


def _defined(library: bytes) -> Iterator[bytes]:
    """Yield the names of the functions and objects that a library exports."""
    if library[:6] != b"\x7fELF\x02\x01":
        return
    _, _, sections_at, size, count = _HEADER.unpack_from(library)
    sections = [_SECTION.unpack_from(library, sections_at + number * size) for number in range(count)]
    for kind, at, length, strings, each in sections:
        if kind != _DYNAMIC_SYMBOLS or not each:
            continue
        names_at = sections[strings][1]
        for symbol in range(at, at + length, each):
            name, section = _SYMBOL.unpack_from(library, symbol)
            if section:  # 0: it is imported
                begin = names_at + name
                yield library[begin : library.index(b"\0", begin)]


SYSTEM = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"}
    | {"proc", "run", "sbin", "snap", "sys", "usr"}
)
# What a name may begin with: printable ASCII but the two separators, and the first bytes of UTF-8.
_FIRST_CHARACTERS = "".join(sorted(set(string.printable) - set(string.whitespace) - {"/", ":"})) + " "
_FIRST_CHARACTERS += bytes(range(0xC2, 0xF5)).decode("ascii", "surrogateescape")
# Linux starts no program with a variable of 128 KiB.
_MOST_BYTES = 96 << 10


def spellings(paths: list[str]) -> list[str]:
    """Return each path as a program may spell it: as given, relative, absolute, with its links resolved."""
    spelled: dict[str, None] = {}
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
        spelled.update(dict.fromkeys(given))
    return list(spelled)


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
    left_out: dict[str, set[str]] = {"/": set(SYSTEM)}
    for path in whole:
        parent, name = os.path.split(path)
        while name:
            left_out.setdefault(parent, set()).add(name)
            parent, name = os.path.split(parent)
    prefixes = list(_FIRST_CHARACTERS)
    # An excluded directory's own neighbours are listed where nothing above it is excluded whole.
    whole |= {f"/{name}" for name in SYSTEM}
    for directory, names in sorted(left_out.items()):
        if any(directory == root or directory.startswith(f"{root}/") for root in whole):
            continue
        base = directory.rstrip("/") + "/"
        first = {name[0] for name in names}
        prefixes += [base + character for character in _FIRST_CHARACTERS if character not in first]
        prefixes += [base + name for name in _neighbours(directory, names, first)]
    return prefixes


def _neighbours(directory: str, names: set[str], first: set[str]) -> list[str]:
    """Return what tells `names` from other entries of `directory` that begin as one of them does.

    Of thousands of entries with names alike that is a few prefixes.
    """
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name[0] in first]
    except OSError:
        return []
    prefixes = set()
    for entry in entries:
        if entry.name in names or ":" in entry.name:
            continue
        spelling = f"{entry.name}/" if os.path.isdir(entry.path) else entry.name
        shared = max(len(os.path.commonprefix([spelling, f"{name}/"])) for name in names)  # noqa: RUF071
        if shared < len(spelling):
            prefixes.add(spelling[: shared + 1])
    return sorted(prefixes)


_PACKAGE = Path(__file__).parents[1]
# A program built with a sanitizer ends at its start where any library is preloaded, unless it is set not to
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

    The word `OFF` alone means no path: nothing is traced.
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
    spelled: dict[str, None] = {}
    for path in paths:
        if ":" in path:
            raise LaunchError(
                f"--io {path}: a path with a colon cannot be named", "name a directory above it"
            )
        spelled.update(dict.fromkeys((os.path.abspath(path), os.path.realpath(path))))
    return list(spelled)


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
        (library, guard),  # the guard comes after dftracer, hence it begins before
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
    spec = importlib.util.find_spec("dftracer")
    for directory in (spec.submodule_search_locations or []) if spec else []:
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
    name, interpreter_path = child.script_interpreter(program, os.environ.get("PATH"))
    directories: dict[str, None] = {}
    for interpreter in filter(None, [program, interpreter_path or name]):
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
