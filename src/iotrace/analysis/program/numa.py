"""NUMA: the nodes of the host, of its accelerators, and those that each process may have memory of.

On which node data and memory lie is not read: that takes a walk through each process's page tables.
"""

from __future__ import annotations

from msgspec.structs import replace

from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.host.system import devices_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import NumaNode, System
from iotrace.sources.scheduling import parse_cpus


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
