"""NUMA: processes that may run on no node of their memory, or on none of their accelerator.

Both are facts of what was allowed; what they cost is not known, so they have no cost and no gain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from iotrace.analysis.results import NumaNode, ProcessUse, System
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import counted

_FAR = 20  # of another socket; nodes of one socket are nearer (10: the node itself)
_NODES = [
    {"node": 0, "cpus": [0, 1], "memory_bytes": 8 << 30, "distances": [10, 21]},
    {"node": 1, "cpus": [2, 3], "memory_bytes": 8 << 30, "distances": [21, 10]},
]
_NEAR = [{**each, "distances": [10, 12] if each["node"] == 0 else [12, 10]} for each in _NODES]
_ELSEWHERE = [{"role": "worker 0", "cpus": [0, 1], "memory_nodes": [1]}]
_AT_HOME = [{"role": "worker 0", "cpus": [0, 1], "memory_nodes": [0]}]


@rule("IO405", "numa-memory", "rank")
@fires({"numa_nodes": _NODES, "processes": _ELSEWHERE})
@silent({"numa_nodes": _NODES, "processes": _AT_HOME}, {"numa_nodes": _NEAR, "processes": _ELSEWHERE})
def numa_memory(facts: RankFacts) -> Iterator[Finding]:
    """Processes may run only on NUMA nodes that are far from the memory that they may have.

    Each access to memory then goes to another socket. What that costs was not measured.
    """
    nodes = {each.node: each for each in facts.report.system.numa_nodes or []}
    with_memory = {node for node, each in nodes.items() if each.memory_bytes}

    def at(process: ProcessUse, own: frozenset[int]) -> frozenset[int]:
        # Of a node without memory all of it is elsewhere.
        return frozenset(process.memory_nodes or ()) & with_memory if own & with_memory else frozenset()

    for own, theirs, members, distance in _far(facts.report.system, nodes, at):
        whose = "its" if len(members) == 1 else "their"
        yield _far_from("memory", own, theirs, members, distance, f"{whose} memory is of")


@rule("IO406", "numa-accelerator", "rank")
@fires({"numa_nodes": _NODES, "processes": _AT_HOME, "gpus": [{"numa_node": 1}]})
@silent(
    {"numa_nodes": _NODES, "processes": _AT_HOME, "gpus": [{"numa_node": 0}]},
    {"numa_nodes": _NODES, "processes": _AT_HOME, "gpus": [{"numa_node": 1}, {"numa_node": None}]},
)
def numa_accelerator(facts: RankFacts) -> Iterator[Finding]:
    """Processes may run only on NUMA nodes that are far from the accelerators of the rank.

    Copies to the device then go through another socket. What that costs was not measured.
    """
    system = facts.report.system
    nodes = {each.node: each for each in system.numa_nodes or []}
    at = [gpu.numa_node for gpu in system.gpus]
    devices = frozenset(node for node in at if node is not None) if None not in at else frozenset()
    where = "the accelerator is at" if len(system.gpus) == 1 else "the accelerators are at"
    for own, theirs, members, distance in _far(system, nodes, lambda *_: devices):
        yield _far_from("accelerator", own, theirs, members, distance, where)


Nodes = frozenset[int]


def _far(
    system: System, nodes: dict[int, NumaNode], at: Callable[[ProcessUse, Nodes], Nodes]
) -> Iterator[tuple[Nodes, Nodes, list[ProcessUse], int]]:
    """Yield the nodes that processes may run on, the far ones of what they use, and the processes."""
    found: dict[tuple[Nodes, Nodes], list[ProcessUse]] = defaultdict(list)
    for process in system.processes if len(nodes) > 1 else ():
        own = frozenset(node for node, each in nodes.items() if {*each.cpus} & {*(process.cpus or ())})
        theirs = at(process, own)
        if own and theirs and not own & theirs and _distance(nodes, own, theirs) >= _FAR:
            found[own, theirs].append(process)
    for (own, theirs), members in found.items():
        yield own, theirs, members, _distance(nodes, own, theirs)


def _far_from(
    what: str, own: Nodes, theirs: Nodes, members: list[ProcessUse], distance: int, where: str
) -> Finding:
    processes = " and ".join(reversed(who(members)))
    return Finding(
        text=f"{processes} may run on {_nodes(own)} alone, {where} {_nodes(theirs)}",
        evidence={
            "cpu_nodes": sorted(own),
            f"{what}_nodes": sorted(theirs),
            "distance": float(distance),
            "processes": float(len(members)),
        },
        cost_ms=0.0,
    )


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
