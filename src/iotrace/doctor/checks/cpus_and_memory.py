"""Check the CPUs and the memory that a run gets, by host and control groups, against what it asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from iotrace.doctor.results import Check, ok, warning
from iotrace.launch.telemetry.cgroups import groups_of, memory_use, read_own, read_text
from iotrace.units import counted, size

_LOW_MEMORY_FRACTION = 0.1
_PREFETCH = 2  # batches that torch lets each worker make ahead, unless told otherwise


def cpu_limit(texts: tuple[str, str]) -> float | None:
    """Return the tightest CPU quota by the texts of `read_own`, in CPUs; None without one."""
    limits = []
    for directory in groups_of(texts, "cpu"):
        v1 = f"{read_text(f'{directory}/cpu.cfs_quota_us')} {read_text(f'{directory}/cpu.cfs_period_us')}"
        quota, _, period = (read_text(f"{directory}/cpu.max") or v1).partition(" ")
        if quota.isdigit():  # else "max" or -1
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


@dataclass(frozen=True)
class Limited:
    """A control group's memory: its limit, and what is left once cached pages of files are dropped.

    `available_bytes` is None where the group does not show what it uses.
    """

    bytes: int
    available_bytes: int | None


def memory_limit(texts: tuple[str, str]) -> Limited | None:
    """Return the tightest memory limit, and the least that is left; None without a limit."""
    found = [use for use in map(memory_use, groups_of(texts, "memory")) if use is not None]
    if not found:
        return None
    left = [max(0, limit - used) for used, limit in found if used is not None]
    return Limited(min(limit for _, limit in found), min(left, default=None))


def available_memory(texts: tuple[str, str]) -> int:
    """Return the bytes that are left to this process, on the host and in its control groups."""
    available, limited = psutil.virtual_memory().available, memory_limit(texts)
    if limited is None or limited.available_bytes is None:
        return available
    return min(available, limited.available_bytes)


@dataclass(frozen=True)
class Demand:
    """What the command's words ask for: loader workers of each rank (None: not known), and ranks.

    Each worker makes `prefetch` batches ahead, of `batch_size` samples (None: not known).
    """

    workers: int | None = None
    ranks: int = 1
    prefetch: int | None = None
    batch_size: int | None = None

    @property
    def in_flight(self) -> int:
        """Return how many batches workers of all ranks may have made ahead."""
        return self.ranks * (self.workers or 0) * (_PREFETCH if self.prefetch is None else self.prefetch)

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


def check_cpus(
    limit: float | None, affinity: int, cpus: int | None, demand: Demand, threads: int | None = None
) -> Check:
    """Judge the CPUs by quota (`limit`) and affinity, against os.cpu_count() (`cpus`) and the demand.

    `threads` is what OMP_NUM_THREADS says.
    """
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
            "where all of them compute they take turns: batches take longer to make, and training slows down",
            _fewer(usable, demand),
        )
    if limit is not None and limit < affinity and (threads is None or threads > max(1, limit)):
        return warning(
            "cpus",
            f"{what}{detail}",
            f"torch, and programs that ask os.cpu_count(), start threads for {cpus or affinity} CPUs: the "
            "kernel then stops them all until the quota's next period",
            f"set OMP_NUM_THREADS to {max(1, int(usable))}, or ask for more CPUs",
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


def check_memory(limited: Limited | None, total: int, available: int, demand: Demand) -> Check:
    """Judge the host's memory, `available` of `total` bytes, and the control group's."""
    what, usable = f"{size(available)} available of {size(total)}", total
    if limited is not None and limited.bytes < total:
        usable = limited.bytes
        what = f"the control group allows {size(usable)} of {size(total)}"
        if limited.available_bytes is not None:
            available = min(available, limited.available_bytes)
            what += f", of which {size(available)} are available"
    if demand.workers:
        what += f", {size(available / demand.processes)} for each of {demand.processes} processes"
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


def cpus(demand: Demand, environment: Mapping[str, str]) -> Check:
    """Check the CPUs of this process, and of a command with `environment`."""
    affinity, threads = len(os.sched_getaffinity(0)), environment.get("OMP_NUM_THREADS", "")
    known = int(threads) if threads.isdecimal() else None
    return check_cpus(cpu_limit(read_own()), affinity, os.cpu_count(), demand, known)


def memory(demand: Demand) -> Check:
    """Check the memory of this process, for the processes of this demand."""
    host = psutil.virtual_memory()
    return check_memory(memory_limit(read_own()), host.total, host.available, demand)


def check_copies(demand: Demand, data_bytes: int, available: int) -> list[Check]:
    """Say what a dataset that holds all data in memory comes to, where copies of it do not fit."""
    whole = data_bytes * demand.processes
    if not demand.workers or whole <= available:
        return []
    once = "fits once" if data_bytes <= available else "does not fit"
    return [
        ok(
            "data-memory",
            f"{size(data_bytes)} of data {once}; {demand.processes} copies are {size(whole)}",
            "a dataset that holds its data as Python objects comes to a copy in each process: spawned "
            "workers get one, forked ones copy what they count references in; an array stays one",
        )
    ]


def copies(demand: Demand, data_bytes: int) -> list[Check]:
    """Check the memory of this process against copies of the data."""
    return check_copies(demand, data_bytes, available_memory(read_own()))
