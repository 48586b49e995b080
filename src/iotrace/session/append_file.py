"""Append to a file in a process whose program may close or reuse any descriptor."""

from __future__ import annotations

import fcntl
import os

from iotrace.session.names import FILE_MODE

_LOWEST_DESCRIPTOR = 200


class Stream:
    """An append-only file. `broken` holds the error after which it takes no more data; empty before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._size_bytes = 0
        self.broken = ""

    def write(self, data: bytes) -> None:
        """Append `data` whole or not at all; after a failure the stream stays as it was, for good."""
        if self.broken or not data:
            return
        try:
            descriptor = self._open()
        except OSError as error:
            # Nothing of ours is open: the descriptor that we had may be the program's file by now.
            self.broken = str(error)
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            self._size_bytes += len(data)
        except OSError as error:
            self.broken = str(error)
            try:
                os.ftruncate(descriptor, self._size_bytes)
            except OSError:
                pass

    def _open(self) -> int:
        # The program may have closed our descriptor (a daemon closes all), which may now be a file of the
        # program: write only where it is still our file.
        if self._is_ours():
            return self._descriptor
        low = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        self._descriptor = out_of_the_way(low)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._size_bytes = status.st_size
        return self._descriptor

    def forget(self) -> None:
        """Close the parent's file in a forked child, if the descriptor is still that file."""
        if self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._descriptor)
        except OSError:  # closed, or never opened (-1)
            return False
        return (status.st_dev, status.st_ino) == self._identity


def out_of_the_way(descriptor: int) -> int:
    """Move `descriptor` to a high number, as programs count on low ones; return the new one.

    Return it unchanged where the limit of open files is lower.
    """
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
    except OSError:
        return descriptor
    os.close(descriptor)
    return high
