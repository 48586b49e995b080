"""What lies in the page cache, by cachestat(2): independent of iotrace, and without effect on it."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import pytest

_CACHESTAT = 451  # on every architecture, since Linux 6.5
_PATIENCE_S = 20.0


def resident_pages(path: Path, offset: int = 0) -> int:
    """Count the pages in memory from `offset` on. Skips the test where the kernel does not tell."""
    of_range = (ctypes.c_uint64 * 2)(offset, 0)
    counts = (ctypes.c_uint64 * 5)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        if libc.syscall(_CACHESTAT, file.fileno(), of_range, counts, 0):
            pytest.skip(f"cachestat: {os.strerror(ctypes.get_errno())}: nobody tells what is in memory")
    return counts[0]


def write(path: Path, data: bytes) -> None:
    """Write a file, whose pages are in memory then. Skips the test where nobody tells that (overlayfs)."""
    path.write_bytes(data)
    if not resident_pages(path):
        pytest.skip(f"{path}: its file system does not tell what is in memory")


def drop(path: Path, offset: int = 0) -> None:
    """Drop the file's pages from `offset` on; skips the test where they stay.

    A page that another core is still handling stays at first: the advice is given until it is followed.
    """
    deadline = time.monotonic() + _PATIENCE_S
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while True:
            os.posix_fadvise(file.fileno(), offset, 0, os.POSIX_FADV_DONTNEED)
            kept = resident_pages(path, offset)
            if not kept:
                return
            if time.monotonic() > deadline:
                pytest.skip(f"{path}: {kept} pages stay in memory when they are dropped")
            time.sleep(0.01)
