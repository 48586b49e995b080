"""Read the limits of the process's control groups, v1 and v2, as far as they are visible here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from iotrace.launch.telemetry.cgroups import groups_v1, groups_v2

MEMBERSHIP, MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mounts")
# v1 writes "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT = 1 << 60
# Limit, usage, and the field of memory.stat with the page cache in the usage that the kernel can free.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Groups:
    """A process's control groups and their mounts: the texts of /proc/self/cgroup and /proc/self/mounts."""

    membership: str
    mounts: str

    def of(self, controller: str) -> list[Path]:
        """Return the directories of the groups of `controller`, and of those above them."""
        found = [
            *groups_v2(self.membership, self.mounts),
            *groups_v1(self.membership, self.mounts, controller),
        ]
        return [Path(directory) for directory in found]


def own() -> Groups:
    """Read this process's groups; none where the kernel has none."""
    try:
        return Groups(MEMBERSHIP.read_text(), MOUNTS.read_text())
    except OSError:
        return Groups("", "")


def cpu_limit(groups: Groups) -> float | None:
    """Return the tightest CPU quota of `groups`, in CPUs; None without one."""
    limits = []
    for directory in groups.of("cpu"):
        v1 = f"{_text(directory / 'cpu.cfs_quota_us')} {_text(directory / 'cpu.cfs_period_us')}"
        quota, _, period = (_text(directory / "cpu.max") or v1).partition(" ")
        if quota.isdigit():  # else "max" or -1
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


@dataclass(frozen=True)
class Limited:
    """A control group's memory: its limit, and what is left once unused file pages are dropped.

    `available_bytes` is None where the group does not show what it uses.
    """

    bytes: int
    available_bytes: int | None


def memory_limit(groups: Groups) -> Limited | None:
    """Return the tightest memory limit of `groups`, and the least that is left; None without a limit."""
    found = []
    for directory in groups.of("memory"):
        for limit_name, usage_name, cache_name in _MEMORY_FILES:
            limit, usage = _text(directory / limit_name), _text(directory / usage_name)
            if not limit.isdigit() or int(limit) >= _NO_LIMIT:
                continue
            available = None
            if usage:
                cache = re.search(rf"^{cache_name} (\d+)$", _text(directory / "memory.stat"), re.MULTILINE)
                kept = max(0, int(usage) - (int(cache[1]) if cache else 0))
                available = max(0, int(limit) - kept)
            found.append(Limited(int(limit), available))
    if not found:
        return None
    left = [group.available_bytes for group in found if group.available_bytes is not None]
    return Limited(min(group.bytes for group in found), min(left, default=None))


def _text(path: Path) -> str:
    """Return the text of a file without the blanks around it; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
