"""Check the file systems of data and sessions: type, what it means, free space.

Estimate how much of the data is in the page cache: whether a run reads from memory or from storage.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

import psutil
from msgspec.structs import replace

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.results import CachedFile, Check, judged, ok, unknown
from iotrace.errors import LaunchError
from iotrace.launch.session_directory import job_name, refuse_taken, task_name
from iotrace.page_cache import PAGE, UNSUPPORTED, cached_pages, find_pages
from iotrace.units import size

_MOST_FILES = 4000
_MOST_PAGES = 512
# Of one file, or a sixteenth of it if that is more: without cachestat a page that was asked for may come in,
# and the next look would find it.
_PAGES_OF_A_FILE, _PART_OF_A_FILE = 32, 16
_WALK_SECONDS, _ASK_SECONDS = 1.0, 1.0
# Of the largest files each by itself: 256 pages by chance tell a share to within 3 % (a standard deviation).
_TOLD_FILES, _SAMPLED_PAGES = 16, 256


_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Files:
    """Regular files that hold something, with their sizes; `all` where none was left out."""

    sizes: dict[Path, int]
    all: bool


def check_page_cache(path: Path, kind: str = "") -> Check:
    """Find the share of randomly chosen pages of the files below `path` that are in memory.

    `kind` is the type of its file system, where that is known.
    """
    if kind in ("tmpfs", "ramfs"):
        why = "a run reads from memory, always: it says nothing of the storage"
        return ok("page-cache", f"all of {path} is in memory, on {kind}", why)
    files = find(path, time.monotonic() + _WALK_SECONDS)
    return replace(_judged(path, kind, files), files=largest(files.sizes, time.monotonic() + _ASK_SECONDS))


def _judged(path: Path, kind: str, files: Files) -> Check:
    try:
        resident = _resident_share(files.sizes, time.monotonic() + _ASK_SECONDS)
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
    least = "" if files.all else "at least "
    total = size(sum(files.sizes.values()))
    what = f"{about} {percent:.0f} % of {least}{total} in {path} are in memory"
    if percent >= 90:
        return ok("page-cache", what, "a run now reads from memory: it says nothing of the storage")
    if percent <= 10:
        return ok("page-cache", what, "the first epoch reads from storage")
    return ok("page-cache", what, "a run mixes both: repeat it, and compare like with like")


def largest(sizes: dict[Path, int], deadline: float) -> list[CachedFile]:
    """Sample the pages of each of the largest files, by cachestat, until `deadline`."""
    told = []
    for file in sorted(sizes, key=lambda file: -sizes[file])[:_TOLD_FILES]:
        resident: int | None = None
        count, why = 0, "not looked at in time"
        if time.monotonic() < deadline:
            try:
                answer, count = ask_by_chance(file, sizes[file], _SAMPLED_PAGES, cached_pages)
                resident, why = answer
            except OSError as error:
                why = str(error.strerror)
        sampled = 0 if resident is None else count
        share = None if resident is None else resident / count
        told.append(CachedFile(str(file), sizes[file], sampled, share, why))
    return told


def ask_by_chance(
    file: Path, file_bytes: int, most: int, ask: Callable[[int, list[int]], _Answer]
) -> tuple[_Answer, int]:
    """Ask of up to `most` pages of a file, others each time; return the answer, and of how many it is.

    Those asked for last time may have come in. The descriptor is its own: the question turns read-ahead off.
    """
    pages = -(-file_bytes // PAGE)
    chosen = random.Random().sample(range(pages), min(most, pages))
    with file.open("rb", buffering=0) as opened:
        return ask(opened.fileno(), chosen), len(chosen)


def find(path: Path, deadline: float) -> Files:
    """Find files, `path` itself or below it: the first thousands, until `deadline`."""
    if path.is_file():
        file_bytes = path.stat().st_size
        return Files({path: file_bytes} if file_bytes else {}, all=True)
    files: dict[Path, int] = {}
    count = 0
    waiting: list[Path | str] = [path]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                # The time is looked at for directories, too: there may be no end of empty ones.
                if count >= _MOST_FILES or time.monotonic() > deadline:
                    return Files(files, all=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                count += 1
                with suppress(OSError):  # a link to nothing
                    status = entry.stat()
                    if S_ISREG(status.st_mode) and status.st_size:
                        files[Path(entry.path)] = status.st_size
    return Files(files, all=True)


def _resident_share(sizes: dict[Path, int], deadline: float) -> tuple[float, bool] | None:
    """Find the share in memory of pages chosen by chance, 0 to 1, and whether the kernel said so exactly.

    Returns None where no page could be asked for.

    Raises:
        OSError: the kernel or the file system cannot answer.
    """
    if not sizes:
        return None
    shares = Counter(random.Random().choices(list(sizes), list(sizes.values()), k=_MOST_PAGES))
    resident, looked_at, exact = 0.0, 0, True
    for file, share in shares.items():
        if time.monotonic() > deadline:
            break
        most = max(_PAGES_OF_A_FILE, sizes[file] // PAGE // _PART_OF_A_FILE)
        try:
            answer, count = ask_by_chance(file, sizes[file], min(share, most), find_pages)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                raise
            continue
        resident += answer.pages * share / count
        looked_at += share
        exact = exact and answer.exact
    return (resident / looked_at, exact) if looked_at else None


_NETWORK = "over the network: opening and asking for sizes costs a round trip"
_MEANINGS = {
    "nfs": _NETWORK,
    "nfs4": _NETWORK,
    "cifs": _NETWORK,
    "smb3": _NETWORK,
    "ceph": _NETWORK,
    "9p": "shared by the host: every call leaves the guest",
    "virtiofs": "shared by the host: every call leaves the guest",
    "lustre": "parallel: large reads are fast, small files and opens slow; striping matters (lfs getstripe)",
    "gpfs": "parallel: large reads are fast, small files and opens slow",
    "beegfs": "parallel: large reads are fast, small files and opens slow",
    "overlay": "a container's layers: a first write to a file copies it whole; mount data into the container",
    "tmpfs": "memory: nothing is read from a disk, and it counts towards the memory limit",
    "ramfs": "memory: nothing is read from a disk",
    "squashfs": "compressed: the kernel decompresses each page that is read",
}
_FUSE = "a user-space daemon answers every call"


@dataclass(frozen=True)
class Mount:
    """A mounted file system: its type, and where."""

    kind: str
    point: str

    @property
    def meaning(self) -> str:
        """Say what this type means for a loader; empty for an ordinary local one."""
        return _FUSE if self.kind.startswith("fuse") else _MEANINGS.get(self.kind, "")


def mounts() -> list[Mount]:
    """Return this process's mounts; none where there is no /proc."""
    try:
        return [
            Mount(partition.fstype, partition.mountpoint) for partition in psutil.disk_partitions(all=True)
        ]
    except OSError:
        return []


def find_mount(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that holds the absolute, link-free `path`: the last of several at one point."""
    holding = [
        mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
    ]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def check_data(path: Path, mounts: list[Mount]) -> Check:
    """Judge the file system that the data lies on."""
    mount = find_mount(os.path.realpath(path), mounts)
    if mount is None:
        why = "no mount in /proc holds it"
        return unknown("data", f"{path}: the file system is not known", why, "try df -T DIR")
    return ok("data", f"{path} is on {mount.kind}", mount.meaning)


def output(directory: str | None, mounts: list[Mount]) -> Check:
    """Check that `iotrace run` can make its session at `directory`; None: where it chooses itself."""
    if directory is None:
        return check_output(Path(), mounts)
    path = Path(directory)
    if path.is_dir():
        try:
            refuse_taken(path, job_name(os.environ), task_name(os.environ))
        except LaunchError as error:
            return judged("output", HostFacts(unwritable=str(error), remedy=error.remedy))
        except OSError as error:
            return judged("output", HostFacts(unwritable=f"{path} cannot be read: {error.strerror}"))
    return check_output(path, mounts)


def check_output(directory: Path, mounts: list[Mount]) -> Check:
    """Check that a session can be written below `directory`, which may not exist yet."""
    try:
        existing = Path(os.path.realpath(directory))
    except FileNotFoundError:
        remedy = "cd to one that is there"
        return judged("output", HostFacts(unwritable="the current directory was deleted", remedy=remedy))
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    mount = find_mount(str(existing), mounts)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return judged("output", HostFacts(unwritable=f"{directory} cannot be written"))
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    what = f"{size(free)} free in {directory}" + (f", on {mount.kind}" if mount else "")
    volatile = "in memory: it is lost at a reboot" if mount and mount.kind in ("tmpfs", "ramfs") else ""
    has_inodes = not status.f_files or bool(status.f_favail)
    return judged("output", HostFacts(what=what, free_bytes=free, has_inodes=has_inodes), volatile)
