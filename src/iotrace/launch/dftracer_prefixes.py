"""The path prefixes that dftracer traces.

dftracer compares a path as the program spelled it with a list of prefixes. The data may lie anywhere, so the
list holds everything but the system and Python: relative paths by their first character, absolute ones by
the complement of what is left out. A match costs the same for one prefix as for two thousand.
"""

from __future__ import annotations

import os
import string

from iotrace.errors import LaunchError

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
