"""Open files that other people may have made: regular files alone, and no more of them than is of use.

A pipe or a device in a session would keep its reader for ever. A link would lead out of the session.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

# What a decoder of JSON raises; the last where it is nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CHUNK_BYTES = 4 << 20
_MOST_DOCUMENT_BYTES = 256 << 20
MOST_BLANK_BYTES = 64 << 20  # in a row, of a file that holds something
_MOST_BYTES = 4 << 30
BLANKS = b" \t\r\n\0"
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISDIR, "a directory"))


def name_kind(mode: int) -> str:
    """Name what a file with `mode` is; empty for a regular file."""
    if stat.S_ISREG(mode):
        return ""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")


def is_regular(path: Path) -> bool:
    """Tell whether a session's file is one that is read."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def open_regular(path: Path, inside: bool = False) -> BinaryIO:
    """Open a file to read its bytes; with `inside`, which a session's files are, refuse a link.

    Raises:
        OSError: there is none, it may not be read, or it is no regular file.
    """
    # The kind first: opening a device may already do something.
    status = os.lstat(path) if inside else os.stat(path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link, and none is followed in a session", str(path))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_NOFOLLOW if inside else 0)
    descriptor = -1
    if not name_kind(status.st_mode):
        descriptor = os.open(path, flags)
        status = os.fstat(descriptor)
    if kind := name_kind(status.st_mode):
        if descriptor >= 0:
            os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path) -> bytes:
    """Read a document of a session; OSError as of `open_regular`, or where it is too large to be one."""
    with open_regular(path, inside=True) as file:
        data = file.read(_MOST_DOCUMENT_BYTES + 1)
    if len(data) > _MOST_DOCUMENT_BYTES:
        raise OSError(errno.EFBIG, "it is too large", str(path))
    return data


def read_pieces(path: Path, problems: list[str]) -> Iterator[bytes]:
    """Read a file that a process appended to, as far as it is of use; `problems` tell what is left out.

    Nothing where there is none.
    """
    blank = size = 0
    try:
        with open_regular(path, inside=True) as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece
                size += len(piece)
                blank = 0 if piece.strip(BLANKS) else blank + len(piece)
                if blank > MOST_BLANK_BYTES or size > _MOST_BYTES:
                    what = "nothing but blanks" if blank else "more than is read of one file"
                    problems.append(
                        f"{path.name} holds {what} from byte {size - blank} on: the rest was left out"
                    )
                    break
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")


def entries(directory: Path, inside: bool = True) -> list[Path]:
    """List what lies in a directory, by name, without links; empty where there is none that can be read.

    With `inside`, which a session's directories are, it is empty for a link to a directory, too.
    """
    try:
        if inside and directory.is_symlink():
            return []
        with os.scandir(directory) as listing:
            names = [each.name for each in listing if not each.is_symlink()]
    except (OSError, ValueError):  # a name with a zero byte
        return []
    return [directory / name for name in sorted(names)]


def left_out(session: Path, most: int = 5) -> Iterator[str]:
    """Tell what lies in a session and is not read: links, pipes, sockets, devices."""
    count = 0
    for root, directories, files in os.walk(session):
        for name in sorted([*directories, *files]):
            path = Path(root, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:  # renamed or deleted meanwhile
                continue
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                continue
            count += 1
            kind = "a link, and none is followed in a session" if stat.S_ISLNK(mode) else name_kind(mode)
            if count <= most:
                yield f"{path.relative_to(session)} is {kind}: it was not read"
    if count > most:
        yield f"{count - most} more links, pipes, sockets or devices were not read"
