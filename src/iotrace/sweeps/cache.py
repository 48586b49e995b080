"""The page cache before a run: data files dropped from it, or read into it; what cannot be done is said."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from iotrace.sources.session import open_session

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROBES = 16
_CHUNK_BYTES = 4 << 20


def data_files(session: Path) -> list[str]:
    """The files that the run of `session` read, which are there still."""
    opened = open_session(session)
    read = {opened.paths.absolute(file) for file in opened.calls.files}
    read |= {
        opened.paths.absolute(process.texts[number])
        for process in opened.processes
        for number in set(process.spans["file"].tolist())
        if number in process.texts
    }
    found: set[str] = set()
    for path in read:
        if os.path.isdir(path):  # a zarr array is named by its directory; its chunks are files of their own
            continue
        if os.path.isfile(path):
            found.add(path)
    return sorted(found)


def drop(files: Iterable[str]) -> list[str]:
    """Drop each file from the page cache; returns those that are still in it, in part at least.

    POSIX_FADV_DONTNEED leaves dirty and mapped pages alone, and works for files of other users.
    """
    kept = []
    for path in files:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            try:
                os.fsync(descriptor)
            except OSError:
                pass
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if _cached(descriptor) > 0:
                kept.append(path)
            # Asking has started read-ahead around each page that was not there.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return kept


def fill(files: Iterable[str]) -> list[str]:
    """Read each file once; returns those that are not in the page cache afterwards."""
    missing = []
    for path in files:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            while os.read(descriptor, _CHUNK_BYTES):
                pass
            if _cached(descriptor) < 1:
                missing.append(path)
        except OSError:
            missing.append(path)
        finally:
            os.close(descriptor)
    return missing


def _cached(descriptor: int) -> float:
    """The share of some pages, spread over the file, that a read finds without waiting.

    mincore answers 100 % for files that are not cached at all; RWF_NOWAIT tells the truth.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    pages = (size + _PAGE - 1) // _PAGE
    probes = sorted({page * (pages - 1) // max(1, _PROBES - 1) for page in range(_PROBES)})
    buffer = bytearray(1)
    found = 0
    for page in probes:
        try:
            found += os.preadv(descriptor, [buffer], page * _PAGE, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            pass
    return found / len(probes)
