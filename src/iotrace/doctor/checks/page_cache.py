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
from collections.abc import Iterator
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
# No data, whatever the sizes of their files say.
_OF_THE_KERNEL = frozenset({"/proc", "/sys", "/dev"})


@dataclass(frozen=True)
class Found:
    """Regular files that hold something, with their sizes; `all` where none was left out."""

    files: dict[Path, int]
    all: bool


def check_page_cache(path: Path, kind: str = "") -> Check:
    """Find the share of randomly chosen pages of the files below `path` that are in memory.

    `kind` is the type of its file system, where that is known.
    """
    found = find(path, time.monotonic() + _WALK_SECONDS)
    if not found.files:
        why = "it holds no readable files" if found.all else f"no file was found within {_WALK_SECONDS:.0f} s"
        return _nothing_seen(path, why)
    try:
        percent = _resident_percent(found.files, time.monotonic() + _ASK_SECONDS)
    except OSError:
        return _cannot_be_asked(path, kind)
    if percent is None:
        return _nothing_seen(path, "none of its files could be read in time")
    least = "" if found.all else "at least "
    total = size(sum(found.files.values()))
    what = f"about {percent:.0f} % of {least}{total} in {path} are in memory"
    if percent >= 90:
        return ok("page-cache", what, "a run now reads from memory: it says nothing of the storage")
    if percent <= 10:
        return ok("page-cache", what, "the first epoch reads from storage")
    return ok("page-cache", what, "a run mixes both: repeat it, and compare like with like")


def _resident_percent(sizes: dict[Path, int], deadline: float) -> float | None:
    """Return the share in memory of pages chosen by chance, in percent; None where none could be asked for.

    Raises:
        OSError: the kernel or the file system cannot answer.
    """
    chosen = random.Random()  # other pages each time: those asked for last time may have come in
    shares = Counter(chosen.choices(list(sizes), list(sizes.values()), k=_MOST_PAGES))
    resident, looked_at = 0.0, 0
    for file, share in shares.items():
        try:
            hits, pages = _sample(file, sizes[file], share, chosen, deadline)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            continue
        if pages:
            resident += hits * share / pages
            looked_at += share
    return 100 * resident / looked_at if looked_at else None


def _nothing_seen(path: Path, why: str) -> Check:
    return unknown("page-cache", f"{path}: no data to look at", why, "name others: --data PATH")


def _cannot_be_asked(path: Path, kind: str) -> Check:
    if kind in ("tmpfs", "ramfs"):
        why = "a run reads from memory, always: it says nothing of the storage"
        return ok("page-cache", f"all of {path} is in memory, on {kind}", why)
    why = f"{kind or 'its file system'} or this kernel does not support RWF_NOWAIT"
    return unknown("page-cache", f"{path}: cannot be asked", why, "compare a first run with a second one")


def find(path: Path, deadline: float) -> Found:
    """Find files, `path` itself or below it: the first thousands, until `deadline`."""
    if not path.is_dir():
        status = path.stat() if path.exists() else None
        holds_data = status is not None and S_ISREG(status.st_mode) and status.st_size
        return Found({path: status.st_size} if holds_data and status else {}, all=True)
    files: dict[Path, int] = {}
    count = 0
    for entry in _entries(str(path)):
        # The time is looked at for directories, too: there may be no end of empty ones.
        if count >= _MOST_FILES or time.monotonic() > deadline:
            return Found(files, all=False)
        try:
            if entry.is_dir(follow_symlinks=False):
                continue
            count += 1
            status = entry.stat()
        except OSError:
            continue
        if S_ISREG(status.st_mode) and status.st_size:
            files[Path(entry.path)] = status.st_size
    return Found(files, all=True)


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    """Yield all below `directory`; links to directories are not followed."""
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and entry.path not in _OF_THE_KERNEL:
                        waiting.append(entry.path)
                    yield entry
        except OSError:
            continue


def _sample(
    file: Path, file_bytes: int, count: int, chosen: random.Random, deadline: float
) -> tuple[int, int]:
    """Ask for at most `count` pages; return how many are in memory, and how many were asked for."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A page that is missed starts its own read-ahead, NOWAIT or not: without this one page would bring
        # its neighbours in, and asking would change the answer. So would asking for a page twice.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        buffer = bytearray(1)
        hits = looked_at = 0
        pages = -(-file_bytes // _PAGE)
        count = min(count, pages, max(_PAGES_OF_A_FILE, pages // _PART_OF_A_FILE))
        for page in chosen.sample(range(pages), count):
            if time.monotonic() > deadline:
                break
            looked_at += 1
            try:
                hits += os.preadv(descriptor, [buffer], page * _PAGE, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                pass
        return hits, looked_at
    finally:
        os.close(descriptor)
