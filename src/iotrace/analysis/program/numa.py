"""NUMA: processes that may run on no node of their memory, or on none of their accelerator.

Both are facts of what was allowed; what they cost is not known, so they have no wait and no gain. On which
node data and memory lie is not read: that takes a walk through each process's page tables.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.host.system import devices_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Culprit, NumaNode, ProcessUse, System
from iotrace.sources.scheduling import parse_cpus
from iotrace.units import counted

_FAR = 20  # of another socket; nodes of one socket are nearer (10: the node itself)


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


def apart(system: System) -> list[Culprit]:
    """Tell of processes whose CPUs lie all on other nodes than their memory, or than the accelerators."""
    nodes = {each.node: each for each in system.numa_nodes or []}
    if len(nodes) < 2:
        return []
    with_memory = {node for node, each in nodes.items() if each.memory_bytes}

    at = [gpu.numa_node for gpu in system.gpus]
    devices = frozenset(node for node in at if node is not None) if None not in at else frozenset()
    found: dict[tuple[str, frozenset[int], frozenset[int]], list[ProcessUse]] = defaultdict(list)
    for process in system.processes:
        own = frozenset(node for node, each in nodes.items() if {*each.cpus} & {*(process.cpus or ())})
        memory = frozenset(process.memory_nodes or ()) & with_memory
        if not own & with_memory:  # of a node without memory all of it is elsewhere
            memory = frozenset()
        for what, theirs in (("memory", memory), ("accelerator", devices)):
            if own and theirs and not own & theirs and _distance(nodes, own, theirs) >= _FAR:
                found[what, own, theirs].append(process)
    return [
        Culprit(
            id=f"numa-{what}",
            text=f"{' and '.join(reversed(who(members)))} may run on {_nodes(own)} alone, "
            f"{_at(what, members, system)} {_nodes(theirs)}",
            evidence={
                "cpu_nodes": sorted(own),
                f"{what}_nodes": sorted(theirs),
                "distance": float(_distance(nodes, own, theirs)),
                "processes": float(len(members)),
            },
            wait_ms=0.0,
            leads=False,
        )
        for (what, own, theirs), members in sorted(found.items(), key=lambda each: each[0][0] != "memory")
    ]


def _distance(nodes: dict[int, NumaNode], own: frozenset[int], theirs: frozenset[int]) -> int:
    """Return how far the nearest of `theirs` is from any of `own`; far where the host does not say."""
    order = sorted(nodes)  # a row of distances has no numbers of nodes
    known = [
        nodes[node].distances[order.index(other)]
        for node in own
        for other in theirs
        if other in nodes and len(nodes[node].distances) == len(order)
    ]
    return min(known, default=_FAR)


def who(members: list[ProcessUse]) -> list[str]:
    """Name processes of a rank: its workers, then the training."""
    workers = [each for each in members if each.role != "main"]
    counts = workers[0].role if len(workers) == 1 else counted(len(workers), "worker")
    return [*([counts] if workers else []), *(["the training"] if len(workers) < len(members) else [])]


def _nodes(nodes: frozenset[int]) -> str:
    return f"NUMA node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, sorted(nodes)))}"


def _at(what: str, members: list[ProcessUse], system: System) -> str:
    if what == "memory":
        return f"{'its' if len(members) == 1 else 'their'} memory is of"
    return "the accelerator is at" if len(system.gpus) == 1 else "the accelerators are at"
