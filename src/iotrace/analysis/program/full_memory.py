"""Memory that is full: files that are read from storage again, memory in swap that processes read back.

The kernel counts, for each control group, memory that came back from swap, and for each process only major
page faults and bytes from storage, whatever they were of. Whose it was is told where these agree, and where
no file was mapped.

NUMA: the nodes of the host, of its accelerators, and those that each process may have memory of.

On which node data and memory lie is not read: that takes a walk through each process's page tables.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.host.measured import MeasuredTime, lifelong
from iotrace.analysis.host.system import devices_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import HostUse, NumaNode, ProcessUse, RankReport, System, total
from iotrace.analysis.wait.production import outermost
from iotrace.session.names import KIND_ITEM
from iotrace.sources.processes import Process
from iotrace.sources.records import Mapped
from iotrace.sources.samples import parse_cpus
from iotrace.sources.telemetry import Telemetry

_OTHERS = 1.5  # times that: others in the group read again, too, and whose memory it was is unknown
LEAST_SWAPPED_BYTES = 16 << 20
_OF_FAULTS = 0.5  # of what page faults fetched came from swap
_SMALLEST_PAGE = 4096


def read_again_bytes(analysis: RankAnalysis) -> float | None:
    """Return what came from storage in the measured time though it had been in memory; None: not counted."""
    telemetry = analysis.telemetry
    if telemetry is None:
        return None
    return MeasuredTime(analysis.kept).growth(telemetry.host.figures.get("refaulted_file_bytes"))


def memory_limit_bytes(telemetry: Telemetry) -> int | None:
    """Return the memory that the control group may use; None where it has no limit."""
    limits = [each.group[1] for each in telemetry.memory if each.group is not None]
    return limits[-1] if limits else None


def pressure(host: HostUse | None) -> float | None:
    """Return in which share of the time some task waited for memory, of the control group or the host."""
    if host is None:
        return None
    own = host.cgroup_pressure_fraction.get("memory")
    return host.pressure_fraction.get("memory") if own is None else own


def with_swap(system: System, analysis: RankAnalysis) -> System:
    """Add what came back from swap in the measured time: of the control group, and of each process."""
    telemetry = analysis.telemetry
    if telemetry is None or system.host is None:
        return system
    time = MeasuredTime(analysis.kept)
    group = time.growth(telemetry.host.figures.get("swap_in_bytes"))
    fetched = [_by_faults(process, telemetry, time) for process in analysis.rank.processes]
    mapped = any(process.of_type(Mapped) for process in analysis.rank.processes)
    own = _shares(group, fetched, system.processes) if group == 0 or not mapped else None
    processes = system.processes
    if own is not None:
        processes = [
            replace(each, swap_in_bytes=each_own) for each, each_own in zip(processes, own, strict=True)
        ]
    host = replace(system.host, swap_in_bytes=None if group is None else round(group))
    return replace(system, processes=processes, host=host)


def _by_faults(process: Process, telemetry: Telemetry, time: MeasuredTime) -> float | None:
    """Return the bytes that page faults of a process fetched from storage, at least; None: not known."""
    sampled = telemetry.process_of(process)
    if sampled is None:
        return None
    faults, fetched, called = (
        time.growth(counter and lifelong(counter, sampled.start_ns, telemetry.last_ns))
        for counter in map(sampled.series, ("major_faults", "read_bytes", "rchar"))
    )
    if faults is None or fetched is None or called is None:
        return None
    return max(faults * _SMALLEST_PAGE, fetched - called, 0.0)


def _shares(
    group: float | None, fetched: list[float | None], processes: list[ProcessUse]
) -> list[int] | None:
    """Return what of `group` each process read back, at least; None where it may have been another's."""
    if group is None:
        return None
    if group == 0:
        return [0] * len(processes)
    whole, read = total(fetched), total(each.storage_read_bytes for each in processes)
    swapped = [each.swap_bytes_peak for each in processes]
    if whole is None or read is None or None in swapped or not _OF_FAULTS * whole <= group <= _OTHERS * read:
        return None
    pairs = zip(fetched, swapped, strict=True)
    return [round(min(own or 0.0, group)) if in_swap else 0 for own, in_swap in pairs]


def slept_for_swap(analysis: RankAnalysis, report: RankReport) -> float:
    """Return in what share of the samples' making their threads slept in page faults.

    A process that read nothing back from swap has slept for none of it.
    """
    back = [each.swap_in_bytes or 0 for each in report.system.processes]
    if sum(back) < LEAST_SWAPPED_BYTES or not len(analysis.kept):
        return 0.0
    start_ns, end_ns = int(analysis.kept["start_ns"][0]), int(analysis.kept["end_ns"][-1])
    slept = whole = 0.0
    for process, own in zip(analysis.rank.processes, back, strict=True):
        spans = process.spans
        items = spans[outermost(spans, spans["kind"] == KIND_ITEM)]
        items = items[(items["start_ns"] >= start_ns) & (items["start_ns"] < end_ns) & (items["cpu_ns"] >= 0)]
        lengths_ns = items["duration_ns"].astype(np.float64)
        whole += float(lengths_ns.sum())
        if own:
            ran_ns = items["cpu_ns"] + np.maximum(items["run_delay_ns"], 0)
            sleeps = np.maximum(items["voluntary_switches"], 1)
            share = np.clip(items["major_faults"] / sleeps, 0.0, 1.0)
            slept += float((np.maximum(lengths_ns - ran_ns, 0.0) * share).sum())
    return slept / whole if whole else 0.0


def with_nodes(system: System, analysis: RankAnalysis) -> System:
    """Add the host's nodes, those of the accelerators, and those that each process may have memory of."""
    rank, telemetry = analysis.rank, analysis.telemetry
    if telemetry is None:
        return system
    nodes = [
        NumaNode(
            node=each.node,
            cpus=sorted(parse_cpus(each.cpus)),
            memory_bytes=each.memory_bytes,
            distances=each.distances,
        )
        for each in telemetry.sampler.nodes
    ]
    time = MeasuredTime(analysis.kept)
    sampled = map(telemetry.process_of, rank.processes)
    processes = [
        replace(use, memory_nodes=None if each is None else time.in_the_middle(each.memory_nodes))
        for use, each in zip(system.processes, sampled, strict=True)
    ]
    devices = devices_of(telemetry, rank)
    gpus = [
        replace(gpu, numa_node=device.about.numa_node)
        for gpu, device in zip(system.gpus, devices, strict=True)
    ]
    return replace(system, numa_nodes=nodes or None, processes=processes, gpus=gpus)
