"""Check the process's limits, and the shared memory through which workers pass batches."""

from __future__ import annotations

import resource

import psutil

from iotrace.doctor.results import Check, ok, warning
from iotrace.units import counted, size

SHM = "/dev/shm"
# The agent keeps its descriptors at 200 and above; torch passes one for each tensor of a batch in flight.
_FEW_FILES = 1024
_FEW_PROCESSES = 512
_SMALL_SHM_BYTES = 1 << 30
_FULL_SHM_FRACTION = 0.1


def check_shm(path: str, workers: int | None) -> Check:
    """Check size and free space of the shared memory at `path`."""
    try:
        usage = psutil.disk_usage(path)
    except FileNotFoundError:
        return warning(
            "shm", f"there is no {path}", "DataLoader workers cannot pass batches", "mount a tmpfs there"
        )
    total, free = usage.total, usage.free
    what = f"{size(free)} free of {size(total)} in {path}"
    for_each = f", {size(free / workers)} for each of {counted(workers, 'worker')}" if workers else ""
    if total < _SMALL_SHM_BYTES or free < _FULL_SHM_FRACTION * total:
        return warning(
            "shm",
            what + for_each,
            "workers' batches lie there (prefetch_factor of each, 2 by default): when it is full, a worker "
            "dies by SIGBUS",
            "docker run --shm-size=8g, or --ipc=host" if total < _SMALL_SHM_BYTES else f"empty {path}",
        )
    return ok("shm", what + for_each)


def check_limits(limits: dict[str, int]) -> Check:
    """Judge the soft limits by name, -1 for none."""
    shown = {name: value for name, value in limits.items() if value >= 0 or name != "file size"}
    what = ", ".join(f"{name} {_shown(name, value)}" for name, value in shown.items())
    low = []
    if 0 <= limits["open files"] < _FEW_FILES:
        low.append(("open files", "each tensor of a batch in flight holds one", f"ulimit -n {_FEW_FILES}"))
    if 0 <= limits["processes"] < _FEW_PROCESSES:
        low.append(("processes", "workers and their threads count", "ulimit -u unlimited"))
    if limits["file size"] >= 0:
        low.append(("file size", "the session's files are cut there", "ulimit -f unlimited"))
    if not low:
        return ok("limits", what)
    why = "; ".join(f"{name}: {reason}" for name, reason, _ in low)
    return warning("limits", what, why, " && ".join(remedy for _, _, remedy in low))


def _shown(name: str, value: int) -> str:
    if value < 0:
        return "unlimited"
    return size(value) if name in ("locked memory", "file size") else str(value)


def limits() -> Check:
    """Check this process's limits."""
    kinds = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "file size": resource.RLIMIT_FSIZE,
    }
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return check_limits(
        {name: -1 if value == resource.RLIM_INFINITY else value for name, value in soft.items()}
    )
