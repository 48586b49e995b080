"""The file behind a program's name: what runs it, and what about it keeps a preloaded library out."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from pathlib import Path

PYTHON = re.compile(r"(python|pypy)[0-9.]*t?$")
# The kernel follows so many scripts that are run by scripts.
_DEEPEST = 4
_PT_INTERP, _ET_EXEC, _ET_DYN = 3, 2, 3


def python_of(program: str, path: str | None) -> str | None:
    """`program` itself if it is a Python, else the one that its ``#!`` names, if that is there."""
    if PYTHON.match(os.path.basename(program)):
        return program
    _, found = script_interpreter(program, path)
    return found if found is not None and PYTHON.match(os.path.basename(found)) else None


def script_interpreter(program: str, path: str | None) -> tuple[str, str | None]:
    """What the ``#!`` of `program` names to run it, and where that is.

    The name is empty without a ``#!``; the place is None where it is not there, or cannot be run.
    """
    try:
        with open(program, "rb") as file:
            line = file.readline(512)
    except OSError:
        return "", None
    if not line.startswith(b"#!"):
        return "", None
    # As the kernel splits it: a carriage return at its end is part of the name.
    words = [os.fsdecode(word) for word in re.split(rb"[ \t]+", line[2:].strip(b" \t\n")) if word]
    if words and os.path.basename(words[0]) == "env" and _runs(words[0]):
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return (named[0], shutil.which(named[0], path=path)) if named else (words[0], words[0])
    return (words[0], words[0] if _runs(words[0]) else None) if words else ("", None)


def lacking_interpreter(program: str, path: str | None) -> str | None:
    """The name of the interpreter for want of which the kernel does not start the script `program`."""
    for _ in range(_DEEPEST):
        name, found = script_interpreter(program, path)
        if not name:
            return None
        if found is None:
            return name
        program = found
    return None


def _runs(program: str) -> bool:
    return os.path.isfile(program) and os.access(program, os.X_OK)


def changes_rights(program: str) -> bool:
    """Whether the kernel starts `program` with other rights than ours, and so without LD_PRELOAD.

    Root that runs a program of root's changes nothing, and a mount may forbid the change.
    """
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        return False
    status = os.stat(program)
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getgid():
        return True
    return os.getuid() != 0 and _has_capabilities(program)


def _has_capabilities(program: str) -> bool:
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def is_static(program: Path) -> bool:
    """Whether an ELF program names no dynamic loader; False for what is no ELF program."""
    try:
        file = program.open("rb")
    except PermissionError:  # one that may be run but not read
        return False
    with file:
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] != 2:
            return False
        order = "<" if head[5] == 1 else ">"
        kind = struct.unpack_from(f"{order}H", head, 16)[0]
        offset = struct.unpack_from(f"{order}Q", head, 32)[0]
        size, count = struct.unpack_from(f"{order}HH", head, 54)
        if kind not in (_ET_EXEC, _ET_DYN):
            return False
        file.seek(offset)
        table = file.read(size * count)
    types = [struct.unpack_from(f"{order}I", table, size * row)[0] for row in range(len(table) // size)]
    return _PT_INTERP not in types
