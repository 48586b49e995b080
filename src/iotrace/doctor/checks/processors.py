"""CPUs and memory that the run really gets, against what the command asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from iotrace.doctor.checks.cgroups import Limited, cpu_limit, memory_limit, own
from iotrace.doctor.results import Check, ok, warning

MEMINFO = Path("/proc/meminfo")
_LOW_MEMORY_FRACTION = 0.1


@dataclass(frozen=True)
class Demand:
    """What the command's words ask for: loader workers of each rank (None where not told), and ranks."""

    workers: int | None = None
    ranks: int = 1

    @property
    def processes(self) -> int:
        """Training processes and their workers."""
        return self.ranks * (1 + (self.workers or 0))

    @property
    def told(self) -> str:
        """In words."""
        if self.workers is None:
            return counted(self.ranks, "training process", "training processes")
        workers = counted(self.workers, "worker")
        if self.ranks == 1:
            return f"{workers} and the training process"
        return f"{counted(self.ranks, 'training process', 'training processes')} with {workers} each"


def check_cpus(limit: float | None, affinity: int, cpus: int | None, demand: Demand) -> Check:
    """CPUs by quota and affinity against what programs count and the processes that the command asks for."""
    usable = affinity if limit is None else min(limit, float(affinity))
    what = f"{counted(usable, 'CPU')} usable"
    hidden = []
    if limit is not None and limit < affinity:
        hidden.append(f"the control group allows {limit:g} of {affinity}")
    if cpus is not None and cpus > affinity:
        hidden.append(f"the process may run on {affinity} of {cpus}")
    detail = f" ({'; '.join(hidden)})" if hidden else ""
    if demand.processes > max(1, usable):
        return warning(
            "cpus",
            f"{demand.told} on {counted(usable, 'CPU')}{detail}",
            "they take turns: a batch takes longer to make and the compute slows, too",
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
    if hidden:
        return ok("cpus", f"{what}{detail}", "os.cpu_count() says more than that")
    return ok("cpus", what)


def _fewer(usable: float, demand: Demand) -> str:
    """What would fit: fewer workers, as far as there are any to spare."""
    fitting = max(1, int(usable / demand.ranks) - 1)
    if demand.workers is not None and fitting < demand.workers:
        return f"set num_workers to {fitting} or ask for more CPUs"
    if demand.ranks > 1:
        return f"ask for {counted(demand.processes, 'CPU')}, or start fewer training processes"
    return (
        f"ask for {counted(demand.processes, 'CPU')}; with num_workers 0 the training process loads by itself"
    )


def check_memory(limited: Limited | None, meminfo: str) -> Check:
    """Memory that is to be had; `meminfo` is the text of /proc/meminfo."""
    sizes = {line.partition(":")[0]: line.split()[1:2] for line in meminfo.splitlines()}
    total = int((sizes.get("MemTotal") or ["0"])[0]) * 1024
    available = int((sizes.get("MemAvailable") or ["0"])[0]) * 1024
    what, usable = f"{gib(available)} available of {gib(total)}", total
    if limited is not None and limited.bytes < total:
        usable = limited.bytes
        what = f"the control group allows {gib(usable)} of {gib(total)}"
        if limited.available_bytes is not None:
            available = min(available, limited.available_bytes)
            what += f", of which {gib(available)} are available"
    if available < _LOW_MEMORY_FRACTION * usable:
        return warning(
            "memory",
            what,
            "little is left for the page cache: files are read anew each epoch",
            "end what else holds memory, or ask for more",
        )
    return ok("memory", what, "the page cache counts towards it" if usable < total else "")


def gib(size_bytes: float) -> str:
    """A size for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 100 or unit == "B" else f"{size_bytes:.1f} {unit}"


def counted(number: float, one: str, several: str = "") -> str:
    """``1 worker``, ``2 workers``."""
    return f"{number:g} {one if number == 1 else several or one + 's'}"


def processors(demand: Demand) -> Check:
    """`check_cpus` of this process."""
    affinity = len(os.sched_getaffinity(0))
    return check_cpus(cpu_limit(own()), affinity, os.cpu_count(), demand)


def memory() -> Check:
    """`check_memory` of this process."""
    return check_memory(memory_limit(own()), MEMINFO.read_text())
