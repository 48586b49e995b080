"""Check the file systems of data and sessions: type, what it means, free space."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.results import Check, judged, ok, unknown
from iotrace.errors import LaunchError
from iotrace.launch.session_directory import job_of, refuse_taken, task_of
from iotrace.units import size

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
        return [Mount(found.fstype, found.mountpoint) for found in psutil.disk_partitions(all=True)]
    except OSError:
        return []


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that holds the absolute, link-free `path`: of those at one point, the last."""
    holding = [
        mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
    ]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def check_data(path: Path, mounts: list[Mount]) -> Check:
    """Judge the file system that the data lies on."""
    mount = mount_of(os.path.realpath(path), mounts)
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
            refuse_taken(path, job_of(os.environ), task_of(os.environ))
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
    mount = mount_of(str(existing), mounts)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return judged("output", HostFacts(unwritable=f"{directory} cannot be written"))
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    what = f"{size(free)} free in {directory}" + (f", on {mount.kind}" if mount else "")
    volatile = "in memory: it is lost at a reboot" if mount and mount.kind in ("tmpfs", "ramfs") else ""
    has_inodes = not status.f_files or bool(status.f_favail)
    return judged("output", HostFacts(what=what, free_bytes=free, has_inodes=has_inodes), volatile)
