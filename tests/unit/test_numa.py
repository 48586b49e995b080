"""NUMA nodes: what runs far from its memory or its accelerator is told. Such hosts are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from iotrace.analysis.program.full_memory import with_nodes
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Gpu, NumaNode, ProcessUse, RankReport, System
from iotrace.launch.telemetry.gpus import read_numa_node
from iotrace.launch.telemetry.procfs import parse_status
from iotrace.launch.telemetry.system import numa_nodes
from iotrace.sources.samples import NumaNode as NodeRecord
from tests.support.results import unknown
from tests.support.rules import blamed_by
from tests.unit.test_telemetry import SECOND, steps

GIB = 1 << 30


def node(number: int, cpus: range, distances: list[int], memory: int = 64 * GIB) -> NumaNode:
    return NumaNode(node=number, cpus=[*cpus], memory_bytes=memory, distances=distances)


SOCKETS = [node(0, range(8), [10, 21]), node(1, range(8, 16), [21, 10])]


def told(
    *cpus: list[int] | None,
    memory: list[int] | None = None,
    gpus: tuple[int | None, ...] = (),
    nodes: list[NumaNode] | None = None,
) -> list[str]:
    """What is told of workers, and a training process on all CPUs, that may use such CPUs."""
    workers = [
        unknown(ProcessUse, pid=1 + number, role=f"worker {number}", cpus=own, memory_nodes=memory)
        for number, own in enumerate(cpus)
    ]
    main = unknown(ProcessUse, pid=0, role="main", cpus=[*range(16)], memory_nodes=memory)
    devices = [
        unknown(Gpu, index=number, uuid="", name="", throttle_reasons={}, numa_node=at)
        for number, at in enumerate(gpus)
    ]
    nodes = SOCKETS if nodes is None else nodes
    system = unknown(System, gpus=devices, processes=[main, *workers], numa_nodes=nodes)
    report = unknown(RankReport, system=system)
    found = [each for code in ("IO405", "IO406") for each in blamed_by(code, report)]
    assert all(each.gain_ms_per_step is None and not each.wait_ms and not each.leads for each in found)
    return [each.text for each in found]


def test_workers_away_from_their_memory_and_from_the_accelerator_are_told() -> None:
    far = [*range(8, 16)]
    assert told(far, far, memory=[0]) == [
        "2 workers may run on NUMA node 1 alone, their memory is of NUMA node 0"
    ]
    assert told(far, [8], [0], gpus=(0,)) == [
        "2 workers may run on NUMA node 1 alone, the accelerator is at NUMA node 0"
    ]
    assert told([0], far, gpus=(0, 0)) == [
        "worker 1 may run on NUMA node 1 alone, the accelerators are at NUMA node 0"
    ]


ONE_SOCKET = [node(0, range(8), [10, 12]), node(1, range(8, 16), [12, 10])]
WITHOUT_MEMORY = [node(0, range(8), [10, 21]), node(1, range(8, 16), [21, 10], memory=0)]


@pytest.mark.parametrize(
    ("cpus", "known"),
    [
        ([8], {"nodes": [node(0, range(16), [10])], "memory": [0], "gpus": (0,)}),  # one node
        ([8], {"nodes": [], "memory": [0], "gpus": (0,)}),  # the host hides them
        ([7, 8], {"memory": [0], "gpus": (0,)}),  # may run on either
        ([8], {"memory": [0, 1], "gpus": (1,)}),
        ([8], {"gpus": (0, 1)}),  # which device is its own is not known
        ([8], {"gpus": (0, None)}),  # where one is, is not known
        (None, {"memory": [0], "gpus": (0,)}),
        ([8], {"nodes": ONE_SOCKET, "memory": [0], "gpus": (0,)}),  # nodes of one socket
        ([8], {"nodes": WITHOUT_MEMORY, "memory": [0]}),  # there is none nearer
    ],
)
def test_what_only_looks_far_is_not_told(cpus: list[int] | None, known: dict[str, Any]) -> None:
    assert told(cpus, **known) == []


def test_the_nodes_of_a_host_are_read(tmp_path: Path) -> None:
    for number, cpus in ((0, "0-7"), (1, "8-15"), (10, "")):
        (directory := tmp_path / f"node{number}").mkdir()
        (directory / "cpulist").write_text(f"{cpus}\n")
        (directory / "distance").write_text("10 21 30\n")
        (directory / "meminfo").write_text(f"Node {number} MemTotal:  1024 kB\nNode {number} MemFree: 1 kB\n")
    (tmp_path / "node1" / "distance").unlink()
    found = numa_nodes(str(tmp_path))
    assert found[::2] == [
        {"node": 0, "cpus": "0-7", "distances": [10, 21, 30], "memory_bytes": 1 << 20},
        {"node": 10, "cpus": "", "distances": [10, 21, 30], "memory_bytes": 1 << 20},
    ]
    assert found[1] == {"node": 1, "cpus": "8-15"}
    assert numa_nodes(str(tmp_path / "none")) == []


def test_the_node_of_a_device_is_found_by_its_bus(tmp_path: Path) -> None:
    for bus, at in (("0000:1b:00.0", "1"), ("0001:c1:00.0", "-1")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(f"{at}\n")
    devices = str(tmp_path)
    assert read_numa_node(b"00000000:1B:00.0", devices) == 1
    assert read_numa_node("0000:1b:00.0", devices) == 1
    assert read_numa_node("0001:C1:00.0", devices) is None  # the firmware does not say
    assert read_numa_node("0002:00:00.0", devices) is None
    assert read_numa_node(None, devices) is None


def test_a_process_says_of_which_nodes_it_may_have_memory() -> None:
    text = b"Mems_allowed_list:\t0-1,3\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t2\n"
    assert parse_status(text).memory_nodes == "0-1,3"
    assert parse_status(text[text.index(b"vol") :]).memory_nodes == ""


def test_nodes_of_the_middle_of_the_steps_count() -> None:
    sampled = SimpleNamespace(host_pid=1, memory_nodes=[(0, frozenset({0, 1})), (4 * SECOND, frozenset({1}))])
    other = SimpleNamespace(pid=2)  # never sampled
    telemetry = SimpleNamespace(
        sampler=SimpleNamespace(
            nodes=[NodeRecord(0, "0-7", GIB, [10, 21]), NodeRecord(1, "8-15", GIB, [21, 10])]
        ),
        process_of=lambda process: None if process is other else process,
        devices=[SimpleNamespace(about=SimpleNamespace(numa_node=1), users=None)],
    )
    analysis: Any = SimpleNamespace(
        telemetry=telemetry,
        rank=SimpleNamespace(main=None, processes=[sampled, other]),
        kept=steps((0, 5 * SECOND), (5 * SECOND, 10 * SECOND)),
    )
    processes = [unknown(ProcessUse, pid=pid, role=f"worker {pid}") for pid in range(2)]
    gpu = unknown(Gpu, index=0, uuid="", name="", throttle_reasons={})
    system = with_nodes(unknown(System, gpus=[gpu], processes=processes), cast(RankAnalysis, analysis))
    assert [each.memory_nodes for each in system.processes] == [[1], None]
    assert [each.numa_node for each in system.gpus] == [1]
    assert [each.cpus for each in system.numa_nodes or []] == [[*range(8)], [*range(8, 16)]]
