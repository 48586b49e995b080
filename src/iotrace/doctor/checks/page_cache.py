"""Estimate how much of the data is in the page cache: whether a run reads from memory or from storage.

Asked by ``preadv2(RWF_NOWAIT)``, which fails where a page would have to be waited for. mincore answers
"all of it" for files that the caller does not own or that were just dropped.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from iotrace.doctor.results import Check, ok, unknown
from iotrace.units import size

_MOST_FILES = 4000
_MOST_PAGES = 512
# Of one file, or a sixteenth of it if that is more: a page that was asked for may come in, and the next look
# would find it.
_PAGES_OF_A_FILE, _PART_OF_A_FILE = 32, 16
_WALK_SECONDS, _ASK_SECONDS = 1.0, 1.0
_PAGE = 4096


@dataclass(frozen=True)
class Found:
    """Regular files that hold something, with their sizes; `all` where none was left out."""

    files: dict[Path, int]
    all: bool


def check_page_cache(path: Path, kind: str = "") -> Check:
    """Find the share of randomly chosen pages of the files below `path` that are in memory.

    `kind` is the type of its file system, where that is known.
    """
    if kind in ("tmpfs", "ramfs"):
        why = "a run reads from memory, always: it says nothing of the storage"
        return ok("page-cache", f"all of {path} is in memory, on {kind}", why)
    found = find(path, time.monotonic() + _WALK_SECONDS)
    try:
        percent = _resident_percent(found.files, time.monotonic() + _ASK_SECONDS)
    except OSError:
        why = f"{kind or 'its file system'} or this kernel does not support RWF_NOWAIT"
        remedy = "compare a first run with a second one"
        return unknown("page-cache", f"{path}: cannot be asked", why, remedy)
    if percent is None:
        why = "no file of it could be read in time"
        return unknown("page-cache", f"{path}: no data to look at", why, "name others: --data PATH")
    least = "" if found.all else "at least "
    total = size(sum(found.files.values()))
    what = f"about {percent:.0f} % of {least}{total} in {path} are in memory"
    if percent >= 90:
        return ok("page-cache", what, "a run now reads from memory: it says nothing of the storage")
    if percent <= 10:
        return ok("page-cache", what, "the first epoch reads from storage")
    return ok("page-cache", what, "a run mixes both: repeat it, and compare like with like")


def find(path: Path, deadline: float) -> Found:
    """Find files, `path` itself or below it: the first thousands, until `deadline`."""
    if path.is_file():
        file_bytes = path.stat().st_size
        return Found({path: file_bytes} if file_bytes else {}, all=True)
    files: dict[Path, int] = {}
    count = 0
    waiting: list[Path | str] = [path]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                # The time is looked at for directories, too: there may be no end of empty ones.
                if count >= _MOST_FILES or time.monotonic() > deadline:
                    return Found(files, all=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                count += 1
                with suppress(OSError):  # a link to nothing
                    status = entry.stat()
                    if S_ISREG(status.st_mode) and status.st_size:
                        files[Path(entry.path)] = status.st_size
    return Found(files, all=True)


def _resident_percent(sizes: dict[Path, int], deadline: float) -> float | None:
    """Return the share in memory of pages chosen by chance, in percent; None where none could be asked for.

    Raises:
        OSError: the kernel or the file system cannot answer.
    """
    if not sizes:
        return None
    chosen = random.Random()  # other pages each time: those asked for last time may have come in
    shares = Counter(chosen.choices(list(sizes), list(sizes.values()), k=_MOST_PAGES))
    resident, looked_at = 0.0, 0
    for file, share in shares.items():
        if time.monotonic() > deadline:
            break
        pages = -(-sizes[file] // _PAGE)
        count = min(share, pages, max(_PAGES_OF_A_FILE, pages // _PART_OF_A_FILE))
        try:
            hits = _resident(file, chosen.sample(range(pages), count))
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            continue
        resident += hits * share / count
        looked_at += share
    return 100 * resident / looked_at if looked_at else None


def _resident(file: Path, pages: list[int]) -> int:
    """Return how many of `pages` are in memory."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A page that is missed starts its own read-ahead, NOWAIT or not: without this one page would bring
        # its neighbours in, and asking would change the answer. So would asking for a page twice.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        buffer = bytearray(1)
        hits = 0
        for page in pages:
            with suppress(BlockingIOError):
                hits += os.preadv(descriptor, [buffer], page * _PAGE, os.RWF_NOWAIT) == 1
        return hits
    finally:
        os.close(descriptor)
