"""Find the process's control groups, whose limits hold for it, and the mounted file systems."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from iotrace.launch.telemetry.procfs import read_file

# File systems of the kernel's own, in which no data lies.
_NO_FILES = frozenset(
    {"proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs", "bpf"}
    | {"pstore", "configfs", "fusectl", "binfmt_misc", "autofs", "efivarfs", "nsfs", "rpc_pipefs"}
)
_MOST_MOUNTS = 256
_MEMORY_OF_VERSION_1 = "memory.usage_in_bytes", "memory.limit_in_bytes"
_COUNT = re.compile(rb"^(\S+) (\d+)$", re.MULTILINE)
_NO_LIMIT = 1 << 60  # bytes: version 1 writes the largest multiple of a page that fits 63 bits

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


def parse_counts(data: bytes) -> dict[bytes, int]:
    """Parse the lines of a name and a number that a group's accounts consist of."""
    return {name: int(number) for name, number in _COUNT.findall(data)}


def parse_quota(data: bytes) -> tuple[int, int] | None:
    """Parse cpu.stat of a group: periods of its quota in which it ran, and those in which it was throttled.

    None without that account; both are 0 without a quota. The throttled time beside them is summed over the
    CPUs' run queues, so it is no share of anything.
    """
    counts = parse_counts(data)
    if b"nr_periods" not in counts or b"nr_throttled" not in counts:
        return None
    return counts[b"nr_periods"], counts[b"nr_throttled"]


def parse_refaults(data: bytes) -> tuple[int, int] | None:
    """Parse memory.stat of a group: pages of files, and others, that came back after it had dropped them.

    Those of the groups below are in it, as version 2 has it. None where the kernel does not count them.
    """
    counts = parse_counts(data)
    for prefix in (b"total_workingset_refault_", b"workingset_refault_"):
        if prefix + b"file" in counts:
            return counts[prefix + b"file"], counts.get(prefix + b"anon", 0)
    return None


def memory_use(directory: str) -> tuple[int | None, int] | None:
    """Return what a group uses that the kernel cannot take back, and its limit, in bytes; None without one.

    Pages of files that are cached count as used in the kernel's own figure: it drops them first. The use is
    None where the group does not show it.
    """
    version_2 = os.path.exists(f"{directory}/memory.max")
    current, most = ("memory.current", "memory.max") if version_2 else _MEMORY_OF_VERSION_1
    limit = read_text(f"{directory}/{most}")
    if not limit.isdecimal() or int(limit) >= _NO_LIMIT:
        return None
    try:
        stat = parse_counts(read_file(f"{directory}/memory.stat"))
        if version_2:
            cached = stat[b"file"] - stat[b"shmem"] + stat.get(b"slab_reclaimable", 0)
        else:
            cached = stat[b"total_cache"] - stat.get(b"total_shmem", 0)
        return max(0, int(read_file(f"{directory}/{current}")) - cached), int(limit)
    except (OSError, ValueError, KeyError):
        return None, int(limit)


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
    accounts = [f"{group}/memory.events" for group in groups_v2(*texts)[:1]]
    accounts += [f"{group}/memory.oom_control" for group in groups_v1(*texts, "memory")[:1]]
    for path in accounts:
        with suppress(OSError, ValueError, KeyError):
            return parse_counts(read_file(path))[b"oom_kill"]
    return None
