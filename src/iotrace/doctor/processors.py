"""CPUs and memory that the run really gets: affinity, and the limits of control groups v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

from iotrace.doctor.results import Check, ok, warning

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
# v1 writes "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT = 1 << 60
_LOW_MEMORY_FRACTION = 0.1


def cpu_limit(cgroups: Path, membership: str) -> float | None:
    """The tightest CPU quota of the process's control groups, in CPUs; None without one.

    `membership` is the text of /proc/self/cgroup.
    """
    limits = []
    for directory in _groups(cgroups, membership, "cpu"):
        quota, period = _words(directory / "cpu.max", 2)  # v2
        if quota is None:
            (quota,), (period,) = (
                _words(directory / "cpu.cfs_quota_us", 1),
                _words(directory / "cpu.cfs_period_us", 1),
            )
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(cgroups: Path, membership: str) -> int | None:
    """The tightest memory limit of the process's control groups in bytes; None without one."""
    limits = []
    for directory in _groups(cgroups, membership, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            (limit,) = _words(directory / name, 1)
            if limit is not None and limit < _NO_LIMIT:
                limits.append(limit)
    return min(limits, default=None)


def _groups(cgroups: Path, membership: str, controller: str) -> list[Path]:
    """The directories of the process's group and of those above it, as far as they are visible here.

    In a container the path may be the host's, of which only the mount's root is to be seen.
    """
    found: dict[Path, None] = {}
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            roots = [cgroups / controllers, cgroups / controller]
        else:
            continue
        for root in roots:
            directory = root / path.lstrip("/")
            while directory != root and root in directory.parents:
                found[directory] = None
                directory = directory.parent
            found[root] = None
    return [directory for directory in found if directory.is_dir()]


def _words(path: Path, count: int) -> list[int | None]:
    """The first numbers in a file, None for each that is not one (``max``) or not there."""
    try:
        words = path.read_text().split()
    except OSError:
        words = []
    numbers = [int(word) if word.lstrip("-").isdigit() else None for word in words[:count]]
    return numbers + [None] * (count - len(numbers))


def check_cpus(limit: float | None, affinity: int, counted: int | None, workers: int | None) -> Check:
    """CPUs by quota and affinity against what programs count and the workers that the command asks for."""
    usable = affinity if limit is None else min(limit, float(affinity))
    what = f"{usable:g} CPUs usable"
    hidden = []
    if limit is not None and limit < affinity:
        hidden.append(f"the control group allows {limit:g} of {affinity}")
    if counted is not None and counted > affinity:
        hidden.append(f"the process may run on {affinity} of {counted}")
    detail = f" ({'; '.join(hidden)})" if hidden else ""
    if workers is not None and workers + 1 > usable:
        return warning(
            "cpus",
            f"{workers} workers and the training process on {usable:g} CPUs{detail}",
            "they take turns: a batch takes longer to make and the compute slows, too",
            f"set num_workers to {max(1, int(usable) - 1)} or ask for more CPUs",
        )
    if limit is not None and limit < affinity:
        return warning(
            "cpus",
            f"{what}{detail}",
            f"torch, and programs that ask os.cpu_count(), start threads for {counted or affinity} CPUs: the "
            "kernel then stops them all until the quota's next period",
            f"set num_workers and OMP_NUM_THREADS for {usable:g} CPUs",
        )
    if hidden:
        return ok("cpus", f"{what}{detail}", "os.cpu_count() says more than that")
    return ok("cpus", what)


def check_memory(limit_bytes: int | None, meminfo: str) -> Check:
    """Memory that is to be had; `meminfo` is the text of /proc/meminfo."""
    sizes = {line.partition(":")[0]: line.split()[1:2] for line in meminfo.splitlines()}
    total = int((sizes.get("MemTotal") or ["0"])[0]) * 1024
    available = int((sizes.get("MemAvailable") or ["0"])[0]) * 1024
    limited = limit_bytes is not None and limit_bytes < total
    usable = limit_bytes if limited and limit_bytes is not None else total
    what = f"{gib(available)} available of {gib(total)}"
    if limited:
        what = f"the control group allows {gib(usable)} of {gib(total)}"
    if available < _LOW_MEMORY_FRACTION * total:
        return warning(
            "memory",
            what,
            "little is left for the page cache: files are read anew each epoch",
            "end what else holds memory, or ask for more",
        )
    return ok("memory", what, "the page cache counts towards it" if limited else "")


def gib(size_bytes: float) -> str:
    """A size for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 100 or unit == "B" else f"{size_bytes:.1f} {unit}"


def processors(workers: int | None) -> Check:
    """`check_cpus` of this process."""
    membership = (PROC / "self/cgroup").read_text()
    affinity = len(os.sched_getaffinity(0))
    return check_cpus(cpu_limit(CGROUPS, membership), affinity, os.cpu_count(), workers)


def memory() -> Check:
    """`check_memory` of this process."""
    membership = (PROC / "self/cgroup").read_text()
    return check_memory(memory_limit(CGROUPS, membership), (PROC / "meminfo").read_text())
