"""How much of the data lies in the page cache: whether a run reads from memory or from storage.

Asked by ``preadv2(RWF_NOWAIT)``, which fails where a page would have to be waited for. mincore answers
"all of it" for files that the caller does not own or that were just dropped.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from iotrace.doctor.processors import gib
from iotrace.doctor.results import Check, ok, unknown

_MOST_FILES = 4000
_MOST_PAGES = 512
_MOST_PAGES_OF_A_FILE = 32
_SECONDS = 1.5
_PAGE = 4096


def check_page_cache(path: Path, kind: str = "") -> Check:
    """The share of randomly chosen pages of the files below `path` that are in memory now.

    `kind` is the type of its file system, where that is known.
    """
    deadline = time.monotonic() + _SECONDS
    files = list(_files(path, deadline))
    sizes = [size for _, size in files]
    if not sum(sizes):
        why = "it holds no readable files"
        return unknown("page-cache", f"{path}: no data to look at", why, "name others: --data PATH")
    chosen = random.Random()  # other pages each time: those that were asked for may have come in
    asked: dict[Path, int] = {}
    for file, _ in chosen.choices(files, sizes, k=_MOST_PAGES):
        asked[file] = asked.get(file, 0) + 1
    resident, looked_at = 0.0, 0
    of_size = dict(files)
    for file, count in asked.items():
        if time.monotonic() > deadline:
            break
        try:
            hits, pages = _sample(file, of_size[file], min(count, _MOST_PAGES_OF_A_FILE), chosen)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return _not_to_be_seen(path, kind)
            continue
        resident += hits * count / pages if pages else 0
        looked_at += count if pages else 0
    if not looked_at:
        why = "none of its files could be read"
        return unknown("page-cache", f"{path}: no data to look at", why, "name others: --data PATH")
    percent = 100 * resident / looked_at
    more = "at least " if len(files) >= _MOST_FILES else ""
    what = f"about {percent:.0f} % of {more}{gib(sum(sizes))} in {path} are in memory"
    if percent >= 90:
        return ok("page-cache", what, "a run now reads from memory: it says nothing of the storage")
    if percent <= 10:
        return ok("page-cache", what, "the first epoch reads from storage")
    return ok("page-cache", what, "a run mixes both: repeat it, and compare like with like")


def _not_to_be_seen(path: Path, kind: str) -> Check:
    if kind in ("tmpfs", "ramfs"):
        why = "a run reads from memory, always: it says nothing of a storage"
        return ok("page-cache", f"all of {path} is in memory, on {kind}", why)
    why = f"{kind or 'its file system'} or this kernel does not know RWF_NOWAIT"
    return unknown("page-cache", f"{path}: not to be seen", why, "compare a first run with a second one")


def _files(path: Path, deadline: float) -> Iterator[tuple[Path, int]]:
    """Regular files with their sizes, the first thousands of them."""
    found = [path] if path.is_file() else (Path(d, name) for d, _, names in os.walk(path) for name in names)
    for count, file in enumerate(found):
        if count >= _MOST_FILES or time.monotonic() > deadline:
            return
        try:
            status = file.stat()
        except OSError:
            continue
        if S_ISREG(status.st_mode) and status.st_size:
            yield file, status.st_size


def _sample(file: Path, size: int, count: int, chosen: random.Random) -> tuple[int, int]:
    """How many of `count` pages of the file are resident, and how many were looked at."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A page that is missed starts its own read-ahead, NOWAIT or not: without this one page would bring
        # its neighbours in, and asking would change the answer.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        buffer = bytearray(1)
        hits = 0
        for _ in range(count):
            offset = chosen.randrange(0, size, _PAGE)
            try:
                hits += os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                pass
        return hits, count
    finally:
        os.close(descriptor)
