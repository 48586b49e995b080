"""The page cache before a run: data files are dropped from it, or read into it, and what stays is checked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from iotrace.page_cache import PAGE, find_pages
from iotrace.sources.session import open_session, read_path_files

# What state the page cache was in before a run.
AS_IS, COLD, WARM = "asis", "cold", "warm"

_PROBES = 16
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.02
_CHUNK_BYTES = 4 << 20


def data_files(session: Path) -> list[str]:
    """The files that the run of `session` read and that still exist, sorted."""
    opened = open_session(session)
    read = {*opened.calls.files, *read_path_files(opened.processes)}
    # A zarr array is named by its directory; its chunks are files of their own.
    return sorted({path for path in map(opened.paths.absolute, read) if os.path.isfile(path)})


def prepare(wanted: str, files: Sequence[str]) -> tuple[str, str]:
    """Drop `files` from the page cache (COLD) or read them into it (WARM).

    Returns `wanted`, or ``cannot be`` it and the reason.
    """
    if not files:
        return f"cannot be {wanted}", "the data files are unknown: iotrace saw the command read none"
    left = drop(files) if wanted == COLD else fill(files)
    if not left:
        return wanted, ""
    outcome = "stay in the page cache" if wanted == COLD else "do not fit the page cache"
    return f"cannot be {wanted}", f"{len(left)} of {len(files)} data files {outcome}, such as {left[0]}"


def drop(files: Iterable[str]) -> list[str]:
    """Drop each file from the page cache; returns those that stay in it, at least in part.

    POSIX_FADV_DONTNEED leaves dirty and mapped pages alone, and works for files of other users. A page that
    another core is still handling stays at first, so the advice is repeated.
    """
    kept = list(files)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        kept = [path for path in kept if not _dropped(path)]
        if not kept:
            break
    return kept


def _dropped(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            descriptor = file.fileno()
            with suppress(OSError):
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            gone = _cached(descriptor) == 0
            # Without cachestat, the check reads the pages that it looks for.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return gone
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def fill(files: Iterable[str]) -> list[str]:
    """Read each file once; returns those that are not in the page cache afterwards."""
    return [path for path in files if not _filled(path)]


def _filled(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            while file.read(_CHUNK_BYTES):
                pass
            return _cached(file.fileno()) == 1
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def _cached(descriptor: int) -> float:
    """The share, 0 to 1, of some pages spread over the file that are in memory."""
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    pages = -(-size // PAGE)
    probes = sorted({page * (pages - 1) // max(1, _PROBES - 1) for page in range(_PROBES)})
    return find_pages(descriptor, probes).pages / len(probes)
