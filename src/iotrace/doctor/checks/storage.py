"""File systems of the data and of the sessions: what kind, what that means, how much is free."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from iotrace.doctor.checks.processors import gib
from iotrace.doctor.results import Check, missing, ok, unknown, warning
from iotrace.errors import LaunchError
from iotrace.launch.job import job_of, task_of
from iotrace.launch.session_directory import refuse_taken

MOUNTS = Path("/proc/self/mountinfo")
_LITTLE_BYTES = 1 << 30
_FULL_BYTES = 64 << 20

# Of the kernel: directories may be made in some, files not.
_NO_STORAGE = frozenset(
    {"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore"}
    | {"devpts", "mqueue", "binfmt_misc", "efivarfs", "nsfs", "selinuxfs", "fusectl", "rpc_pipefs"}
)
_NOTHING = "nothing can be recorded"
_ANOTHER = "name another: -o DIR"

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
    """Where a path is mounted: file system type, mount point and options."""

    kind: str
    point: str
    options: str

    @property
    def meaning(self) -> str:
        """What this type means for a loader; empty for an ordinary local one."""
        return _FUSE if self.kind.startswith("fuse") else _MEANINGS.get(self.kind, "")


def mounts() -> str:
    """This process's mounts; none where there is no /proc."""
    try:
        return MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds the absolute, link-free `path`; `mountinfo` as in proc(5), the last one wins."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 6 or not kinds:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(kinds[0], point, fields[5])
    return best


def check_data(path: Path, mountinfo: str) -> Check:
    """The file system that the data lies on."""
    mount = mount_of(os.path.realpath(path), mountinfo)
    if mount is None:
        return unknown(
            "data",
            f"{path}: the file system is not known",
            "no mount in /proc holds it",
            "df -T DIR may know it",
        )
    return ok("data", f"{path} is on {mount.kind}", mount.meaning)


def output(directory: str | None, mountinfo: str) -> Check:
    """Whether `iotrace run` could make its session at `directory`, else one of its own naming here."""
    if directory is None:
        return check_output(Path(), mountinfo)
    path = Path(directory)
    if path.is_dir():
        try:
            refuse_taken(path, job_of(os.environ), task_of(os.environ))
        except LaunchError as error:
            return missing("output", str(error), _NOTHING, error.remedy)
        except OSError as error:
            return missing("output", f"{path} cannot be read: {error.strerror}", _NOTHING, _ANOTHER)
    return check_output(path, mountinfo)


def check_output(directory: Path, mountinfo: str) -> Check:
    """Whether a session can be written below `directory`, which may not exist yet."""
    try:
        place = Path(os.path.realpath(directory))
    except FileNotFoundError:
        return missing("output", "the current directory was deleted", _NOTHING, "cd to one that is there")
    while not place.exists() and place != place.parent:
        place = place.parent
    mount = mount_of(str(place), mountinfo)
    if mount is not None and mount.kind in _NO_STORAGE:
        what = f"{directory} is on {mount.kind}, which keeps no files"
        return missing("output", what, _NOTHING, _ANOTHER)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return missing("output", f"{directory} cannot be written", _NOTHING, _ANOTHER)
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    what = f"{gib(free)} free in {directory}" + (f", on {mount.kind}" if mount else "")
    if free < _FULL_BYTES or (status.f_files and not status.f_favail):
        lacking = "no inodes" if free >= _FULL_BYTES else "too little"
        return missing("output", what, f"{lacking}: the recording would be cut", f"free some, or {_ANOTHER}")
    if free < _LITTLE_BYTES:
        return warning("output", what, "a traced POSIX call takes about 220 bytes", _ANOTHER)
    volatile = "in memory: it is lost at a reboot" if mount and mount.kind in ("tmpfs", "ramfs") else ""
    return ok("output", what, volatile)
