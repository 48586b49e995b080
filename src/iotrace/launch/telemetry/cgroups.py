"""Find the process's control groups, whose limits hold for it, and the mounted file systems."""

from __future__ import annotations

import os
from contextlib import suppress

# File systems of the kernel's own, in which no data lies.
_NO_FILES = {
    "proc",
    "sysfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
}
_NO_FILES |= {"pstore", "configfs", "fusectl", "binfmt_misc", "autofs", "efivarfs", "nsfs", "rpc_pipefs"}
_MOST_MOUNTS = 256
_MEMORY_OF_VERSION_1 = "memory.usage_in_bytes", "memory.limit_in_bytes"
NO_LIMIT = 1 << 60  # bytes: version 1 writes the largest multiple of a page that fits 63 bits

MEMBERSHIP, MOUNTS = "/proc/self/cgroup", "/proc/self/mounts"


def read_own() -> tuple[str, str]:
    """Return the texts of /proc/self/cgroup and /proc/self/mounts; empty where they cannot be read."""
    try:
        with open(MEMBERSHIP) as cgroups, open(MOUNTS) as mounts:
            return cgroups.read(), mounts.read()
    except (OSError, UnicodeDecodeError):
        return "", ""


def groups_of(texts: tuple[str, str], controller: str) -> list[str]:
    """Return the directories of the groups of `controller`, and of those above them, in both versions."""
    return [*groups_v2(*texts), *groups_v1(*texts, controller)]


def groups_v2(cgroups: str, mounts: str) -> list[str]:
    """Return the directories of the process's group of version 2 and of those above it, its own first.

    `cgroups` and `mounts` are the texts of `read_own`.
    """
    paths = [line[3:] for line in cgroups.splitlines() if line.startswith("0::")]
    roots = [line.split()[1] for line in mounts.splitlines() if line.split()[2:3] == ["cgroup2"]]
    return _upwards(roots[0], paths[0]) if paths and roots else []


def groups_v1(cgroups: str, mounts: str, controller: str) -> list[str]:
    """Return the same for version 1's `controller`."""
    for line in cgroups.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            for mount in mounts.splitlines():
                words = mount.split()
                if words[2:3] == ["cgroup"] and controller in words[3].split(","):
                    return _upwards(words[1], path)
    return []


def _upwards(root: str, path: str) -> list[str]:
    """Return `root`/`path` and the directories above it, up to `root`.

    In a container the path may be the host's, of which only the mount's root is visible: its own group.
    """
    directory = os.path.normpath(f"{root}/{path}")
    found = []
    if directory.startswith(f"{root}/") and os.path.isdir(directory):
        while directory != root:
            found.append(directory)
            directory = os.path.dirname(directory)
    return [*found, root]


def mounts_with_files(mounts: str) -> list[tuple[str, str]]:
    """Return where file systems that may hold data are mounted, and their types, from the text of mounts."""
    found = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    return [(_unescaped(point), kind) for point, kind in found if kind not in _NO_FILES][-_MOST_MOUNTS:]


def _unescaped(point: str) -> str:
    """Undo what the kernel does to blanks and backslashes in a name."""
    for code, text in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, text)
    return point


def parse_quota(data: bytes) -> tuple[int, int] | None:
    """Parse cpu.stat of a group: periods of its quota in which it ran, and those in which it was throttled.

    None without that account; both are 0 without a quota. The throttled time beside them is summed over the
    CPUs' run queues, so it is no share of anything.
    """
    values = dict(line.split(b" ", 1) for line in data.splitlines() if b" " in line)
    if b"nr_periods" not in values or b"nr_throttled" not in values:
        return None
    return int(values[b"nr_periods"]), int(values[b"nr_throttled"])


def parse_refaults(data: bytes) -> tuple[int, int] | None:
    """Parse memory.stat of a group: pages of files, and others, that came back after it had dropped them.

    Those of the groups below are in it, as version 2 has it. None where the kernel does not count them.
    """
    values = dict(line.split(b" ", 1) for line in data.splitlines() if b" " in line)
    for prefix in (b"total_workingset_refault_", b"workingset_refault_"):
        if prefix + b"file" in values:
            return int(values[prefix + b"file"]), int(values.get(prefix + b"anon", b"0"))
    return None


def memory_use(directory: str) -> tuple[int, int] | None:
    """Return what a group uses that the kernel cannot take back, and its limit, in bytes; None without one.

    Pages of files that are cached count as used in the kernel's own figure: it drops them first.
    """
    version_2 = os.path.exists(f"{directory}/memory.current")
    current, most = ("memory.current", "memory.max") if version_2 else _MEMORY_OF_VERSION_1
    limit = read_text(f"{directory}/{most}")
    if not limit.isdecimal() or int(limit) >= NO_LIMIT:
        return None
    try:
        rows = [row.split() for row in read_text(f"{directory}/memory.stat").splitlines()]
        stat = {name: int(text) for name, text in rows}
        if version_2:
            cached = stat["file"] - stat["shmem"] + stat.get("slab_reclaimable", 0)
        else:
            cached = stat["total_cache"] - stat.get("total_shmem", 0)
        return max(0, int(read_text(f"{directory}/{current}")) - cached), int(limit)
    except (ValueError, KeyError):
        return None


def read_text(path: str) -> str:
    """Return the text of a file without the blanks around it; empty where it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def count_oom_kills() -> int | None:
    """Count the processes of this control group that the kernel ended for lack of memory; None: unknown."""
    texts = read_own()
    own = groups_v2(*texts)[:1], groups_v1(*texts, "memory")[:1]
    for groups, name in zip(own, ("memory.events", "memory.oom_control"), strict=True):
        for group in groups:
            with suppress(ValueError, KeyError):
                counts = dict(line.split() for line in read_text(f"{group}/{name}").splitlines())
                return int(counts["oom_kill"])
    return None
