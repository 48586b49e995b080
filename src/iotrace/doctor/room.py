"""How much of this place is left: CPUs, memory, shared memory, descriptors."""

from __future__ import annotations

import os
import resource

import psutil

from iotrace.doctor.checks.processors import cpu_limit, memory_limit
from iotrace.launch.telemetry.cgroups import read_own
from iotrace.sweeps.tune.limits import Place


def place_here() -> Place:
    """Look at the limits of this process, its control groups and its host."""
    texts = read_own()
    cpus = float(len(os.sched_getaffinity(0)))
    quota, limit = cpu_limit(texts), memory_limit(texts)
    memory = psutil.virtual_memory().available
    if limit is not None and limit.available_bytes is not None:
        memory = min(memory, limit.available_bytes)
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes: int | None = shm.f_bavail * shm.f_frsize
    except OSError:
        shm_bytes = None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Place(
        cpus=cpus if quota is None else min(cpus, quota),
        memory_bytes=memory,
        shm_bytes=shm_bytes,
        descriptors=None if soft == resource.RLIM_INFINITY else soft,
    )
