"""Check the CPUs and the memory that a run gets, against what the command asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from iotrace.doctor.checks.cgroups import Limited, cpu_limit, memory_limit, own
from iotrace.doctor.results import Check, ok, warning
from iotrace.units import counted, size

_LOW_MEMORY_FRACTION = 0.1


@dataclass(frozen=True)
class Demand:
    """What the command's words ask for: loader workers of each rank (None: not known), and ranks."""

    workers: int | None = None
    ranks: int = 1

    @property
    def processes(self) -> int:
        """Return the number of training processes and workers together."""
        return self.ranks * (1 + (self.workers or 0))

    @property
    def in_words(self) -> str:
        """Describe the training processes and workers."""
        if self.workers is None:
            return counted(self.ranks, "training process", "training processes")
        workers = counted(self.workers, "worker")
        if self.ranks == 1:
            return f"{workers} and the training process"
        return f"{counted(self.ranks, 'training process', 'training processes')} with {workers} each"


def check_cpus(limit: float | None, affinity: int, cpus: int | None, demand: Demand) -> Check:
    """Judge the CPUs by quota (`limit`) and affinity, against os.cpu_count() (`cpus`) and the demand."""
    usable = affinity if limit is None else min(limit, float(affinity))
    what = f"{_cpus(usable)} usable"
    limits = []
    if limit is not None and limit < affinity:
        limits.append(f"the control group allows {limit:g} of {affinity}")
    if cpus is not None and cpus > affinity:
        limits.append(f"the process may run on {affinity} of {cpus}")
    detail = f" ({'; '.join(limits)})" if limits else ""
    if demand.processes > max(1, usable):
        return warning(
            "cpus",
            f"{demand.in_words} on {_cpus(usable)}{detail}",
            "they take turns: batches take longer to make, and the compute slows down, too",
            _fewer(usable, demand),
        )
    if limit is not None and limit < affinity:
        return warning(
            "cpus",
            f"{what}{detail}",
            f"torch, and programs that ask os.cpu_count(), start threads for {cpus or affinity} CPUs: the "
            "kernel then stops them all until the quota's next period",
            f"set OMP_NUM_THREADS to {max(1, int(usable))}, and no more workers, or ask for more CPUs",
        )
    if limits:
        return ok("cpus", f"{what}{detail}", "os.cpu_count() says more than that")
    return ok("cpus", what)


def _fewer(usable: float, demand: Demand) -> str:
    """Return the remedy for too many processes: fewer workers, as long as one is left."""
    fitting = max(1, int(usable / demand.ranks) - 1)
    if demand.workers is not None and fitting < demand.workers:
        return f"set num_workers to {fitting} or ask for more CPUs"
    if demand.ranks > 1:
        return f"ask for {counted(demand.processes, 'CPU')}, or start fewer training processes"
    return (
        f"ask for {counted(demand.processes, 'CPU')}; with num_workers 0 the training process loads by itself"
    )


def check_memory(limited: Limited | None, total: int, available: int) -> Check:
    """Judge the host's memory, `available` of `total` bytes, and the control group's."""
    what, usable = f"{size(available)} available of {size(total)}", total
    if limited is not None and limited.bytes < total:
        usable = limited.bytes
        what = f"the control group allows {size(usable)} of {size(total)}"
        if limited.available_bytes is not None:
            available = min(available, limited.available_bytes)
            what += f", of which {size(available)} are available"
    if available < _LOW_MEMORY_FRACTION * usable:
        return warning(
            "memory",
            what,
            "little is left for the page cache: files are read again in each epoch",
            "end what else holds memory, or ask for more",
        )
    return ok("memory", what, "the page cache counts towards it" if usable < total else "")


def _cpus(number: float) -> str:
    return f"{number:g} {'CPU' if number == 1 else 'CPUs'}"


def processors(demand: Demand) -> Check:
    """Check the CPUs of this process."""
    affinity = len(os.sched_getaffinity(0))
    return check_cpus(cpu_limit(own()), affinity, os.cpu_count(), demand)


def memory() -> Check:
    """Check the memory of this process."""
    host = psutil.virtual_memory()
    return check_memory(memory_limit(own()), host.total, host.available)
