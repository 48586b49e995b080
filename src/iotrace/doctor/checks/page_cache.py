"""Estimate how much of the data is in the page cache: whether a run reads from memory or from storage."""

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

from msgspec.structs import replace

from iotrace.doctor.results import CachedFile, Check, ok, unknown
from iotrace.page_cache import PAGE, cached_pages, find_pages
from iotrace.units import size

_MOST_FILES = 4000
_MOST_PAGES = 512
# Of one file, or a sixteenth of it if that is more: without cachestat a page that was asked for may come in,
# and the next look would find it.
_PAGES_OF_A_FILE, _PART_OF_A_FILE = 32, 16
_WALK_SECONDS, _ASK_SECONDS = 1.0, 1.0
# Of the largest files each by itself: 256 pages by chance tell a share to within 3 % (a standard deviation).
_TOLD_FILES, _SAMPLED_PAGES = 16, 256


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
    return replace(_judged(path, kind, found), files=largest(found.files, time.monotonic() + _ASK_SECONDS))


def _judged(path: Path, kind: str, found: Found) -> Check:
    try:
        resident = _resident_share(found.files, time.monotonic() + _ASK_SECONDS)
    except OSError:
        why = f"{kind or 'its file system'} or this kernel supports neither cachestat nor RWF_NOWAIT"
        remedy = "compare a first run with a second one"
        return unknown("page-cache", f"{path}: cannot be asked", why, remedy)
    if resident is None:
        why = "no file of it could be read in time"
        return unknown("page-cache", f"{path}: no data to look at", why, "name others: --data PATH")
    share, exact = resident
    percent = 100 * share
    about = "about" if exact or percent < 1 else "at most"
    least = "" if found.all else "at least "
    total = size(sum(found.files.values()))
    what = f"{about} {percent:.0f} % of {least}{total} in {path} are in memory"
    if percent >= 90:
        return ok("page-cache", what, "a run now reads from memory: it says nothing of the storage")
    if percent <= 10:
        return ok("page-cache", what, "the first epoch reads from storage")
    return ok("page-cache", what, "a run mixes both: repeat it, and compare like with like")


def largest(sizes: dict[Path, int], deadline: float) -> list[CachedFile]:
    """Sample the pages of each of the largest files, by cachestat, until `deadline`."""
    chosen = random.Random()
    told = []
    for file in sorted(sizes, key=lambda file: -sizes[file])[:_TOLD_FILES]:
        pages = -(-sizes[file] // PAGE)
        count = min(pages, _SAMPLED_PAGES)
        found, why = None, "not looked at in time"
        if time.monotonic() < deadline:
            try:
                with file.open("rb", buffering=0) as opened:
                    found, why = cached_pages(opened.fileno(), chosen.sample(range(pages), count))
            except OSError as error:
                why = str(error.strerror)
        sampled = 0 if found is None else count
        share = None if found is None else found / count
        told.append(CachedFile(str(file), sizes[file], sampled, share, why))
    return told


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


def _resident_share(sizes: dict[Path, int], deadline: float) -> tuple[float, bool] | None:
    """Find the share in memory of pages chosen by chance, 0 to 1, and whether the kernel said so exactly.

    Returns None where no page could be asked for.

    Raises:
        OSError: the kernel or the file system cannot answer.
    """
    if not sizes:
        return None
    chosen = random.Random()  # other pages each time: those asked for last time may have come in
    shares = Counter(chosen.choices(list(sizes), list(sizes.values()), k=_MOST_PAGES))
    resident, looked_at, exact = 0.0, 0, True
    for file, share in shares.items():
        if time.monotonic() > deadline:
            break
        pages = -(-sizes[file] // PAGE)
        count = min(share, pages, max(_PAGES_OF_A_FILE, pages // _PART_OF_A_FILE))
        try:
            with file.open("rb", buffering=0) as opened:
                found = find_pages(opened.fileno(), chosen.sample(range(pages), count))
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            continue
        resident += found.pages * share / count
        looked_at += share
        exact = exact and found.exact
    return (resident / looked_at, exact) if looked_at else None
