"""Read the limits of the process's control groups, v1 and v2, as far as they are visible here."""

from __future__ import annotations

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
        quota, period = _words(directory / "cpu.max", 2)  # v2
        if quota is None:
            (quota,), (period,) = (
                _words(directory / "cpu.cfs_quota_us", 1),
                _words(directory / "cpu.cfs_period_us", 1),
            )
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
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
            (limit,) = _words(directory / limit_name, 1)
            if limit is None or limit >= _NO_LIMIT:
                continue
            (usage,) = _words(directory / usage_name, 1)
            available = None
            if usage is not None:
                kept = max(0, usage - _figure(directory / "memory.stat", cache_name))
                available = max(0, limit - kept)
            found.append(Limited(limit, available))
    if not found:
        return None
    left = [group.available_bytes for group in found if group.available_bytes is not None]
    return Limited(min(group.bytes for group in found), min(left, default=None))


def _figure(path: Path, name: str) -> int:
    """Return the number after `name` in a file of ``name number`` lines; 0 where there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == name), 0)


def _words(path: Path, count: int) -> list[int | None]:
    """Return the first `count` numbers of a file; None for each that is absent or no number (``max``)."""
    try:
        words = path.read_text().split()
    except OSError:
        words = []
    numbers = [int(word) if word.lstrip("-").isdigit() else None for word in words[:count]]
    return numbers + [None] * (count - len(numbers))
