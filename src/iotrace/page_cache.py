"""Ask the kernel which pages of a file are in the page cache.

``cachestat`` (Linux 6.5) answers and changes nothing. The kernel may refuse it for a file of another owner,
and on a stacked file system (overlayfs) it finds no page at all. The other way is ``preadv2(RWF_NOWAIT)``: a
page that is missed starts its own reading, and where that ends at once (fast storage, a virtual machine
that had no CPU meanwhile) the page counts as found. mincore answers "all of it" for files of another owner.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from functools import cache
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_CACHESTAT = 451  # on every architecture

_answering: set[int] = set()  # the file systems on which cachestat has found a page


class Found(NamedTuple):
    """How many of the pages asked for are in memory: exactly, or at most so many."""

    pages: int
    exact: bool


def find_pages(descriptor: int, pages: list[int]) -> Found:
    """Count which of `pages`, numbers of pages in the open file, are in memory.

    Raises:
        OSError: neither way works for this file (its number is of `UNSUPPORTED`), or it cannot be read.
    """
    found = _by_cachestat(descriptor, pages)
    if found is not None:
        return Found(found, exact=True)
    return Found(_without_waiting(descriptor, pages), exact=False)


def cached_pages(descriptor: int, pages: list[int]) -> tuple[int | None, str]:
    """Count which of `pages` are in memory by cachestat alone; None, with why, where it does not tell."""
    ctypes.set_errno(0)
    found = _by_cachestat(descriptor, pages)
    if found is not None:
        return found, ""
    error = ctypes.get_errno()
    if error == errno.ENOSYS:
        return None, "this kernel has no cachestat (Linux 6.5 has)"
    if error == errno.EPERM:
        return None, "the kernel tells it of files alone that one owns or may write"
    return None, os.strerror(error) if error else "its file system does not tell"


def _by_cachestat(descriptor: int, pages: list[int]) -> int | None:
    """Count the pages in memory; None where the kernel does not say."""
    # Whoever reads a page here reads no other: what is asked for must not change by being asked for.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    found = 0
    for page in pages:
        count = _cachestat(descriptor, page)
        if count is None:
            return None
        found += count
    device = os.fstat(descriptor).st_dev
    if found:
        _answering.add(device)
    if pages and device not in _answering:
        os.pread(descriptor, 1, pages[0] * PAGE)  # so this page is in memory, for whoever can see it
        if not _cachestat(descriptor, pages[0]):
            return None
        _answering.add(device)
    return found


def _cachestat(descriptor: int, page: int) -> int | None:
    """Return 1 if the page is in memory, else 0; None where the kernel does not say."""
    asked = (ctypes.c_uint64 * 2)(page * PAGE, PAGE)
    found = (ctypes.c_uint64 * 5)()
    failed = _libc().syscall(_CACHESTAT, descriptor, asked, found, 0)
    return None if failed else min(found[0], 1)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _without_waiting(descriptor: int, pages: list[int]) -> int:
    buffer = bytearray(1)
    found = 0
    for page in pages:
        with suppress(BlockingIOError):
            found += os.preadv(descriptor, [buffer], page * PAGE, os.RWF_NOWAIT) == 1
    return found
