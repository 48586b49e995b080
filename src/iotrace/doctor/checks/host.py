"""Check the host: CPUs, memory, limits and shared memory that a run gets, its clocks, what can be sampled."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import time
import timeit
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec.structs import replace

from iotrace.analysis.rules.facts.host import Demand, HostFacts
from iotrace.doctor.results import Check, judged, ok, unknown
from iotrace.launch.telemetry.procfs import list_groups, memory_use, read_own, read_stat, read_text
from iotrace.launch.telemetry.system import System
from iotrace.launch.telemetry.tree import Member
from iotrace.units import counted, size

SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_READS = 20_000
_TIME_ERROR, _STA_UNSYNC = 5, 0x40


class _Timex(ctypes.Structure):
    """``struct timex`` of <sys/timex.h>; the rest is padding."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def read_cost_ns() -> float:
    """Measure the ns that one reading of CLOCK_MONOTONIC takes, in the best of five rounds."""
    return 1e9 * min(timeit.repeat(time.monotonic_ns, number=_READS, repeat=5)) / _READS


def check_clock_source(source: Path, cost_ns: float) -> Check:
    """Judge where the kernel takes time from: reading ``tsc`` needs no system call, reading ``hpet`` does."""
    try:
        name = source.read_text().strip()
    except OSError:
        name = "unknown source"
    what, offered = f"{name}, {cost_ns:.0f} ns a reading", name != "tsc" and _has_tsc(source)
    return judged("clock", HostFacts(what=what, reading_ns=cost_ns, tsc_is_offered=offered))


def _has_tsc(source: Path) -> bool:
    """Return whether this machine's kernel offers ``tsc``."""
    try:
        return "tsc" in source.with_name("available_clocksource").read_text().split()
    except OSError:
        return False


def check_synchronised(state: int, status: int, max_error_us: int, hosts: int) -> Check:
    """Judge `state`, `status` and `max_error_us` as adjtimex gives them; on one host nothing rests on it."""
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        facts = HostFacts(what="CLOCK_REALTIME is not synchronised", unsynchronised_hosts=hosts)
        return judged("clock-sync", facts, "one host needs no synchronised clock")
    return ok("clock-sync", f"CLOCK_REALTIME is synchronised, to within {max_error_us / 1000:.1f} ms")


def synchronised(hosts: int) -> Check:
    """Check this machine's CLOCK_REALTIME, for a run that `hosts` hosts take part in."""
    timex = _Timex()  # modes 0: nothing is set
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return unknown("clock-sync", "adjtimex is refused", os.strerror(ctypes.get_errno()))
    return check_synchronised(state, timex.status, timex.maxerror, hosts)


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
    limits = {name: resource.getrlimit(number)[0] for name, number in own.items()}
    groups = most_processes(read_own())
    if groups is not None:
        limits["processes"] = groups if limits["processes"] < 0 else min(groups, limits["processes"])
    with suppress(OSError, ValueError), open(_MOST_MAPPINGS) as file:
        limits["mappings"] = int(file.read())
    return check_limits(limits, demand)


def most_processes(texts: tuple[str, str]) -> int | None:
    """Return how many processes and threads the control groups leave; None without a limit."""
    left = []
    for directory in list_groups(texts, "pids"):
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


# The sidecar's figures, and the names that people use.
_FIGURES = {"cpus": "CPUs", "memory": "memory", "disks": "disks", "net": "network"}
_FIGURES["cpu_pressure_us"] = "pressure (PSI)"
_ENERGY = "energy is that of GPUs; the CPUs' (RAPL) is not read"


def telemetry() -> Check:
    """Check this machine's figures."""
    system = System()
    system.read()  # CPUs are figures between two readings
    return check_telemetry(_samples_itself(), {name for name, value in system.read()[0].items() if value})


def _samples_itself() -> bool:
    with suppress(OSError), closing(Member(0, os.getpid(), read_stat("self"), "")) as member:
        return member.sample() is not None
    return False


def check_telemetry(processes: bool, figures: set[str]) -> Check:
    """Judge whether a process could be sampled, and which `figures` of the host were there."""
    sampled = [shown for name, shown in _FIGURES.items() if name in figures]
    lacking = [shown for name, shown in _FIGURES.items() if name not in figures]
    what = ", ".join(["processes", *sampled])
    facts = (
        HostFacts(what=what, why=_ENERGY, lacking=lacking) if processes else HostFacts(processes_hidden=True)
    )
    return judged("telemetry", facts, _ENERGY)


def cpu_limit(texts: tuple[str, str]) -> float | None:
    """Return the tightest CPU quota by the texts of `read_own`, in CPUs; None without one."""
    limits = []
    for directory in list_groups(texts, "cpu"):
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
    uses = [use for use in map(memory_use, list_groups(texts, "memory")) if use is not None]
    if not uses:
        return None
    left = [max(0, limit - used) for used, limit in uses if used is not None]
    return Limited(min(limit for _, limit in uses), min(left, default=None))


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
    """Say how much memory a dataset takes that holds all data, where copies of it do not fit."""
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
