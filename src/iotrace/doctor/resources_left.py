"""What is left for a run here, as `iotrace tune` asks: CPUs, memory, shared memory, descriptors."""

from __future__ import annotations

import os
import resource

from iotrace.doctor.checks.host import available_memory, cpu_limit
from iotrace.launch.telemetry.procfs import read_own
from iotrace.sweeps.tune.candidates import Place


def resources_left() -> Place:
    """Look at the limits of this process, its control groups and its host."""
    texts = read_own()
    cpus = float(len(os.sched_getaffinity(0)))
    quota = cpu_limit(texts)
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes: int | None = shm.f_bavail * shm.f_frsize
    except OSError:
        shm_bytes = None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Place(
        cpus=cpus if quota is None else min(cpus, quota),
        memory_bytes=available_memory(texts),
        shm_bytes=shm_bytes,
        descriptors=None if soft == resource.RLIM_INFINITY else soft,
    )
