"""The device's busy time by phase: answers by hand."""

from __future__ import annotations

import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.results import Accelerator, RankReport
from iotrace.report.words import device_facts
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import AUTOGRAD, Event, activity_of, annotation, data_wait, kernel, operator
from tests.support.results import unknown
from tests.support.traces import SHARED, shared_trace


def found(*events: Event | list[Event]) -> Accelerator:
    made = accelerator_of([activity_of(*events)])
    assert made is not None
    return made


def step_of_all() -> list[Event | list[Event]]:
    """A step whose all-reduce runs from 55 to 75, alone from 60 to 70: the optimizer's kernel follows."""
    return [
        data_wait(0, 10),
        operator("aten::to", 2, 4, Sequence_number=4, Fwd_thread_id=0),
        kernel(5, 9, launched=3, name="Memcpy HtoD", category="gpu_memcpy"),
        operator("aten::mm", 12, 30, Sequence_number=5, Fwd_thread_id=0),
        kernel(20, 30, launched=15),
        operator("MmBackward0", 40, 61, AUTOGRAD, Sequence_number=5, Fwd_thread_id=1),
        kernel(50, 60, launched=45, tid=AUTOGRAD),
        kernel(55, 75, launched=50, tid=AUTOGRAD, name="ncclDevKernel_AllReduce", stream=20),
        annotation("Optimizer.step#SGD.step", 62, 68),
        kernel(70, 78, launched=65),
        kernel(80, 83),  # nobody knows who launched it
    ]


def test_each_instant_of_the_device_belongs_to_one_phase() -> None:
    device = found(*step_of_all())
    assert device.by_phase is not None
    phases = {one.phase: (one.busy_us, one.comm_us, one.comm_alone_us) for one in device.by_phase}
    assert phases == {
        "forward": (10, 0, 0),
        "backward": (20, 20, 10),  # of the all-reduce what no kernel computed beside: 60 to 70
        "optimizer": (8, 0, 0),
        "loader": (4, 0, 0),
        "elsewhere": (3, 0, 0),
    }
    assert sum(one.busy_us or 0 for one in device.by_phase) == device.busy_us == 45
    assert device_facts(unknown(RankReport, accelerator=device)) == [
        "busy 0.0 of 0.1 ms traced",
        "forward 0.0 · backward 0.0 · optimizer 0.0 · loader 0.0 · elsewhere 0.0",
    ]


def test_a_phase_that_no_range_tells_of_is_unknown_and_its_work_elsewhere() -> None:
    device = found(
        operator("aten::mm", 12, 30, Sequence_number=5, Fwd_thread_id=0),
        kernel(20_000, 30_000, launched=15),
        operator("aten::add_", 40, 50),
        kernel(31_000, 36_000, launched=45, name="ncclDevKernel_AllReduce", stream=20),
    )
    assert device.by_phase is not None
    busy = {one.phase: one.busy_us for one in device.by_phase}
    assert busy == {
        "forward": 10_000,
        "backward": None,
        "optimizer": None,
        "loader": None,
        "elsewhere": 5_000,
    }
    (head, parts) = device_facts(unknown(RankReport, accelerator=device))
    assert head == "busy 15.0 of 36.0 ms traced"
    assert parts == "forward 10.0 · elsewhere 5.0 (5.0 communication alone)"


def test_without_a_known_phase_there_is_no_line() -> None:
    device = found(annotation("Optimizer.step#SGD.step", 0, 9), kernel(20, 30))
    assert device.by_phase is None
    assert device_facts(unknown(RankReport, accelerator=device)) == []
    assert device_facts(unknown(RankReport)) == []


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize("name", ["nccl_2ranks_rank0.json.gz", "resnet50_num_workers_4.pt.trace.json.gz"])
def test_phases_of_real_traces_sum_to_the_busy_time(name: str) -> None:
    device = accelerator_of([Activity(read_kineto(shared_trace(name)))])
    assert device is not None
    assert device.by_phase is not None
    assert sum(one.busy_us or 0 for one in device.by_phase) == pytest.approx(device.busy_us)
