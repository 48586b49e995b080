"""Check the process's limits, and the shared memory through which workers pass batches."""

from __future__ import annotations

import math
import resource
from contextlib import suppress
from typing import NamedTuple

import psutil

from iotrace.analysis.rules.facts.host import Demand, HostFacts
from iotrace.doctor.results import Check, judged
from iotrace.launch.telemetry.procfs import groups_of, read_own, read_text
from iotrace.units import counted, size

SHM = "/dev/shm"
_OWN_DESCRIPTORS = 256  # of a training process: its libraries', and the agent's
_FEW_TENSORS = 8  # of a batch
_MOST_MAPPINGS = "/proc/sys/vm/max_map_count"


class _Limit(NamedTuple):
    number: int | None  # of resource; None: the kernel's own
    too_low_below: float
    why: str
    remedy: str


# The agent keeps its descriptors at 200 and above; torch passes one for each tensor of a batch in flight.
_LIMITS = {
    "open files": _Limit(
        resource.RLIMIT_NOFILE, 1024, "each tensor of a batch in flight holds one", "ulimit -n 1024"
    ),
    "processes": _Limit(resource.RLIMIT_NPROC, 512, "workers and their threads count", "ulimit -u unlimited"),
    "mappings": _Limit(
        None,
        65530,
        "each tensor of a batch in flight, and each mapped file, holds one or more",
        "sysctl -w vm.max_map_count=262144",
    ),
    "file size": _Limit(
        resource.RLIMIT_FSIZE, math.inf, "the session's files are cut there", "ulimit -f unlimited"
    ),
}


def check_shm(path: str, demand: Demand) -> Check:
    """Check size and free space of the shared memory at `path`, for the batches that workers make ahead."""
    try:
        usage = psutil.disk_usage(path)
    except FileNotFoundError:
        return judged("shm", HostFacts(shm=path))
    total, free = usage.total, usage.free
    what = f"{size(free)} free of {size(total)} in {path}"
    if count := demand.in_flight:
        what += f", {size(free / count)} for each of {counted(count, 'batch', 'batches')} in flight"
        if demand.batch_size:
            what += f" ({size(free / count / demand.batch_size)} a sample)"
    return judged("shm", HostFacts(what=what, shm=path, shm_bytes=total, shm_free_bytes=free, demand=demand))


def limits(demand: Demand) -> Check:
    """Check this process's soft limits, those of its control groups and of the kernel, for this demand."""
    own = {name: limit.number for name, limit in _LIMITS.items() if limit.number is not None}
    found = {name: resource.getrlimit(number)[0] for name, number in own.items()}
    groups = most_processes(read_own())
    if groups is not None:
        found["processes"] = groups if found["processes"] < 0 else min(groups, found["processes"])
    with suppress(OSError, ValueError), open(_MOST_MAPPINGS) as file:
        found["mappings"] = int(file.read())
    return check_limits(found, demand)


def most_processes(texts: tuple[str, str]) -> int | None:
    """Return how many processes and threads the control groups leave; None without a limit."""
    left = []
    for directory in groups_of(texts, "pids"):
        with suppress(ValueError):  # "max", or it cannot be read
            left.append(int(read_text(f"{directory}/pids.max")) - int(read_text(f"{directory}/pids.current")))
    return None if not left else max(0, min(left))


def check_limits(limits: dict[str, int], demand: Demand) -> Check:
    """Judge the soft limits by name, -1 (RLIM_INFINITY) for none; of files for a rank's batches in flight."""
    what = ", ".join(f"{name} {'unlimited' if value < 0 else value}" for name, value in limits.items())
    low = {name: _LIMITS[name] for name, value in limits.items() if 0 <= value < _LIMITS[name].too_low_below}
    batches = demand.in_flight // demand.ranks
    files = limits.get("open files", -1)
    if batches and files >= 0:
        left = max(0, files - _OWN_DESCRIPTORS) // batches
        of = f"{counted(batches, 'batch', 'batches')} in flight of a rank"
        what += f"; {counted(left, 'tensor')} in each of {of}"
        if left < _FEW_TENSORS:
            enough = 1 << (_OWN_DESCRIPTORS + _FEW_TENSORS * batches - 1).bit_length()
            low["open files"] = _LIMITS["open files"]._replace(remedy=f"ulimit -n {enough}")
    too_low = {name: (limit.why, limit.remedy) for name, limit in low.items()}
    return judged("limits", HostFacts(what=what, too_low=too_low))
