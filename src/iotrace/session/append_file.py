"""Append to a file in a process whose program may close or reuse any descriptor."""

from __future__ import annotations

import fcntl
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from os import O_APPEND, O_CLOEXEC, O_CREAT, O_WRONLY

# From `posix`: what `os` has under these names may be gevent's or eventlet's.
from posix import close, fstat, ftruncate, open, write

from iotrace.session.guard import ours
from iotrace.session.names import FILE_MODE

_LOWEST_DESCRIPTOR = 200
_NEVER = object()  # what no call returns

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """An append-only file. `broken` holds the error after which it takes no more data; empty before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._size_bytes = 0
        self.broken = ""

    def write(self, data: bytes, then: Callable[[], object] = tuple) -> None:
        """Append `data` whole or not at all; after a failure the stream stays as it was, for good.

        In the same step call `then`, which is written in C: no signal handler of the program comes between.
        """
        if self.broken or not data:
            then()
            return
        try:
            descriptor = self._open()
        except ours(OSError) as error:
            # Nothing of ours is open: the descriptor that we had may be the program's file by now.
            self.broken = str(error)
            then()
            return
        try:
            # Iterators written in C, which call one function after the other.
            written, _ = next(
                zip(iter(partial(write, descriptor, data), None), iter(then, _NEVER), strict=False)
            )
            while written < len(data):
                written += write(descriptor, data[written:])
        except ours(OSError) as error:
            self.broken = str(error)
            then()
            try:
                ftruncate(descriptor, self._size_bytes)
            except ours(OSError):
                pass

    def _open(self) -> int:
        # The program may have closed our descriptor (a daemon closes all), which may now be a file of the
        # program: write only where it is still our file.
        if self._is_ours():
            return self._descriptor
        low = open(self._path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, FILE_MODE)
        self._descriptor = out_of_the_way(low)
        status = fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._size_bytes = status.st_size
        return self._descriptor

    def forget(self) -> None:
        """Close the parent's file in a forked child, if the descriptor is still that file."""
        if self._is_ours():
            close(self._descriptor)
        self._descriptor = -1

    def _is_ours(self) -> bool:
        try:
            status = fstat(self._descriptor)
        except ours(OSError):  # closed, or never opened (-1)
            return False
        self._size_bytes = status.st_size
        return (status.st_dev, status.st_ino) == self._identity


def append_line(path: str, line: str) -> None:
    """Append `line` in one call, to a file that is made where there is none."""
    descriptor = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, FILE_MODE)
    try:
        write(descriptor, f"{line}\n".encode(errors="replace"))
    finally:
        close(descriptor)


def out_of_the_way(descriptor: int) -> int:
    """Move `descriptor` to a high number, as programs count on low ones; return the new one.

    Return it unchanged where the limit of open files is lower.
    """
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
    except ours(OSError):
        return descriptor
    close(descriptor)
    return high
