"""Check the CPUs and the memory that a run gets, by host and control groups, against what it asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from msgspec.structs import replace

from iotrace.analysis.rules.facts.host import Demand, HostFacts
from iotrace.doctor.results import Check, judged, ok
from iotrace.launch.telemetry.procfs import groups_of, memory_use, read_own, read_text
from iotrace.units import size


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


def check_cpus(
    limit: float | None, affinity: int, cpus: int | None, demand: Demand, threads: int | None = None
) -> Check:
    """Judge the CPUs by quota (`limit`) and affinity, against os.cpu_count() (`cpus`) and the demand.

    `threads` is what OMP_NUM_THREADS says.
    """
    facts = HostFacts(demand=demand, quota_cpus=limit, affinity=affinity, cpus=cpus, threads=threads)
    why = "os.cpu_count() says more than that" if facts.cpu_limits else ""
    return judged("cpus", replace(facts, what=f"{facts.cpus_in_words} usable{facts.cpu_limits}"), why)


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
    facts = HostFacts(what=what, memory_bytes=usable, available_bytes=available)
    return judged("memory", facts, "the page cache counts towards it" if usable < total else "")


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
