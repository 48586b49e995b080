"""Busy, idle and who ended it: made-up traces, and oracles that look at every instant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from iotrace.analysis.device.accelerator import DataWaits, accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.gaps import CLASSES, classify, gaps_of
from iotrace.analysis.device.modules import PHASES, backward_ranges, origins_of
from iotrace.analysis.intervals import Coverage, innermost
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import AUTOGRAD, activity_of, annotation, data_wait, kernel, operator, trace_of
from tests.support.traces import SHARED, shared_trace
from tests.unit.test_intervals import columns, interval

END = 40


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = END, depth: int = 3) -> list[tuple[int, int]]:
    """Ranges that nest as calls do."""
    found = []
    for start, end in zip(
        *[iter(sorted(draw(st.lists(st.integers(low, high), max_size=6))))] * 2, strict=False
    ):
        if end > start:
            found.append((start, end))
            if depth:
                found += draw(nested(start, end, depth - 1))
    return found


@given(nested(), st.lists(st.integers(-1, END + 1), max_size=20))
def test_innermost_is_the_shortest_range_that_holds_the_instant(
    ranges: list[tuple[int, int]], times: list[int]
) -> None:
    found = innermost(*columns(ranges), np.array(times, dtype=np.int64)).tolist()
    for time, index in zip(times, found, strict=True):
        holds = [end - start for start, end in ranges if start <= time < end]
        assert (index >= 0) == bool(holds)
        if holds:
            start, end = ranges[index]
            assert start <= time < end
            assert end - start == min(holds)


kernels = st.lists(
    st.tuples(
        st.integers(0, END), st.integers(1, 9), st.none() | st.integers(0, END), st.sampled_from([7, 8])
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one[0],
)


@settings(deadline=None, max_examples=60)
@given(kernels, st.lists(interval, max_size=3), st.integers(0, 5))
def test_every_idle_instant_has_one_class(
    rows: list[tuple[int, int, int | None, int]], waits: list[tuple[int, int]], short_us: int
) -> None:
    activity = activity_of(
        *[kernel(at, at + us, launched, stream=stream) for at, us, launched, stream in rows]
    )
    waiting = Coverage(*(1000 * side for side in columns(waits)))
    gaps = gaps_of(activity, np.flatnonzero(activity.device))
    table = classify(activity, gaps, waiting, short_us * 1000)
    launches = {at: launched for at, _, launched, _ in rows}
    busy = {time for at, us, _, _ in rows for time in range(at, at + us)}
    expected = []
    for begin in range(min(busy), max(busy)):
        if begin in busy or begin - 1 not in busy:
            continue
        end = next(time for time in range(begin, max(busy) + 1) if time in busy)
        launched = launches[end]
        row = dict.fromkeys(CLASSES, 0)
        if launched is not None and launched > begin:
            inside = sum(any(left <= time < right for left, right in waits) for time in range(begin, end))
            row["data_wait"], row["host_wait"] = inside, end - begin - inside
        else:
            row["kernel_wait" if end - begin < short_us else "other"] = end - begin
        expected.append([1000 * row[name] for name in CLASSES])
    assert table.tolist() == expected


def test_the_figures_of_a_window() -> None:
    activity = activity_of(
        kernel(0, 100, launched=-10),
        kernel(200, 300, launched=190),  # launched late: host wait, 60 us of it in the data wait
        kernel(310, 400, launched=220),  # launched early, short gap
        kernel(450, 500, launched=230),  # launched early, long gap
        kernel(250, 350, launched=240, name="ncclDevKernel_AllReduce_Sum_f32", stream=20),
        kernel(520, 540, launched=515, name="Memcpy HtoD", category="gpu_memcpy"),
        data_wait(120, 180),
    )
    found = accelerator_of([activity])
    assert found is not None
    assert (found.span_us, found.busy_us, found.idle_us) == (540, 370, 170)
    assert (found.compute_us, found.comm_us, found.memory_us, found.non_compute_us) == (340, 100, 20, 30)
    assert (found.comm_comp_overlap_us, found.comm_comp_overlap_pct) == (90, 90)
    # 400 to 450 is long, but its kernel had been launched.
    assert found.idle_by_class_us == {"data_wait": 60, "host_wait": 60, "kernel_wait": 0, "other": 50}
    computing, communicating = found.streams
    assert (computing.stream, computing.events, communicating.events) == (7, 5, 1)
    assert computing.idle_by_class_us["kernel_wait"] == 10
    assert found.data_wait_by_cause_us is None


def test_the_idle_data_wait_is_split_as_the_wait_it_lies_in() -> None:
    activity = activity_of(kernel(0, 100, -1), kernel(200, 300, 190), kernel(400, 500, 390))
    starts, ends = columns([(100_000, 180_000), (340_000, 380_000)])
    waits = DataWaits(starts, ends, [{"read": 60_000, "decode": 20_000}, {"read": 0, "decode": 40_000}])
    found = accelerator_of([activity], [waits])
    assert found is not None
    assert found.idle_by_class_us["data_wait"] == 120
    assert found.data_wait_by_cause_us == pytest.approx({"read": 60, "decode": 60})


def test_idle_is_charged_to_the_module_and_phase_whose_kernel_ended_it() -> None:
    activity = activity_of(
        annotation("module:Net", 0, 100),
        annotation("module:encoder", 10, 40),
        operator("aten::linear", 12, 30, Sequence_number=5, Fwd_thread_id=0),
        operator("aten::addmm", 13, 29, Sequence_number=5, Fwd_thread_id=0),
        kernel(20, 30, launched=15),
        annotation("module:head", 50, 90),
        operator("aten::linear", 52, 80, Sequence_number=6, Fwd_thread_id=0),
        kernel(60, 70, launched=55),
        # The backward pass, on a thread of autograd's, in the opposite order.
        operator(
            "autograd::engine::evaluate_function: AddmmBackward0",
            100,
            140,
            AUTOGRAD,
            Sequence_number=6,
            Fwd_thread_id=1,
        ),
        operator("AddmmBackward0", 101, 139, AUTOGRAD, Sequence_number=6, Fwd_thread_id=1),
        kernel(110, 120, launched=105, tid=AUTOGRAD),
        operator("AddmmBackward0", 150, 190, AUTOGRAD, Sequence_number=5, Fwd_thread_id=1),
        kernel(170, 180, launched=155, tid=AUTOGRAD),
        operator("torch::autograd::AccumulateGrad", 190, 220, AUTOGRAD),
        kernel(205, 215, launched=200, tid=AUTOGRAD, name="ncclDevKernel_AllReduce", stream=20),
        annotation("Optimizer.step#SGD.step", 230, 260),
        kernel(245, 250, launched=240),
        kernel(300, 310),  # nobody knows who launched it
    )
    found = accelerator_of([activity])
    assert found is not None
    charged = {(one.module, one.phase): (one.idle_us, one.comm_us) for one in found.idle_by_module}
    assert charged == {
        ("encoder", "forward"): (0, 0),  # it launched what began the window
        ("head", "forward"): (30, 0),
        ("head", "backward"): (40, 0),
        ("encoder", "backward"): (50, 0),
        (None, "backward"): (25, 10),
        (None, "optimizer"): (30, 0),
        (None, "other"): (50, 0),
    }
    assert sum(idle for idle, _ in charged.values()) == found.idle_us
    device = {(one.module, one.phase): one.device_us for one in found.idle_by_module}
    assert device == {
        ("encoder", "forward"): 10,
        ("head", "forward"): 10,
        ("head", "backward"): 10,
        ("encoder", "backward"): 10,
        (None, "backward"): 10,
        (None, "optimizer"): 5,
        (None, "other"): 10,
    }


def test_equal_sequence_numbers_of_two_threads_are_told_apart() -> None:
    other = 77
    activity = activity_of(
        annotation("nn.Module: right", 0, 50),
        operator("aten::a", 1, 5, Sequence_number=1, Fwd_thread_id=0),
        operator("aten::b", 6, 9, Sequence_number=2, Fwd_thread_id=0),
        annotation("nn.Module: wrong", 0, 50, other),
        operator("aten::c", 1, 5, other, Sequence_number=2, Fwd_thread_id=0),
        operator("BBackward0", 100, 110, AUTOGRAD, Sequence_number=2, Fwd_thread_id=3),
        operator("ABackward0", 120, 130, AUTOGRAD, Sequence_number=1, Fwd_thread_id=3),
        kernel(105, 106, 101, tid=AUTOGRAD),
        kernel(125, 126, 121, tid=AUTOGRAD),
    )
    places = origins_of(activity)
    device = np.flatnonzero(activity.device)
    assert [places.modules[number] for number in places.module[device]] == ["right", "right"]
    assert [PHASES[number] for number in places.phase[device]] == ["backward", "backward"]


def test_windows_are_summed_and_what_lies_between_them_is_not_idle() -> None:
    one = activity_of(kernel(0, 100, -1), kernel(150, 200, 140))
    other = activity_of(kernel(9000, 9100, 8999), kernel(9110, 9200, 9000, stream=8))
    found = accelerator_of([one, other])
    assert found is not None
    assert (found.span_us, found.busy_us, found.idle_us) == (400, 340, 60)
    assert found.idle_by_class_us == {"data_wait": 0, "host_wait": 50, "kernel_wait": 10, "other": 0}
    assert [(one.stream, one.events, one.busy_us) for one in found.streams] == [(7, 3, 250), (8, 1, 90)]


def test_a_trace_without_a_device_has_no_accelerator() -> None:
    assert accelerator_of([activity_of(operator("aten::mm", 0, 10))]) is None


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize(
    "name", ["resnet50_num_workers_0.pt.trace.json.gz", "recsys_8ranks_rank3.json.gz", "mi300_owlv2.json.gz"]
)
def test_real_traces_account_for_every_idle_microsecond(name: str) -> None:
    found = accelerator_of([Activity(read_kineto(shared_trace(name)))])
    assert found is not None
    assert sum(found.idle_by_class_us.values()) == pytest.approx(found.idle_us)
    assert sum(one.idle_us for one in found.idle_by_module) == pytest.approx(found.idle_us)
    kernels, others = found.kernels, found.memory_operations
    device_us = sum(one.total_us for one in kernels) + sum(one.total_us for one in others)
    assert sum(one.device_us for one in found.idle_by_module) == pytest.approx(device_us)
    assert found.compute_us + found.non_compute_us == pytest.approx(found.busy_us)
    # 0 workers: the loader's waits are most of the idle time; seen as such on the device, too.
    if "workers_0" in name:
        assert found.idle_by_class_us["data_wait"] > 0.5 * found.idle_us


def test_the_backward_pass_has_a_range_for_every_module() -> None:
    def module(name: str, start: int, end: int) -> dict[str, Any]:
        return operator(f"module:{name}", start, end)

    def backward(start: int, end: int, sequence: int) -> dict[str, Any]:
        return operator("MmBackward0", start, end, AUTOGRAD, Sequence_number=sequence, Fwd_thread_id=1)

    trace = trace_of(
        module("encoder.0", 0, 10),
        operator("aten::mm", 1, 9, Sequence_number=1),
        module("encoder.1", 10, 20),
        operator("aten::mm", 11, 19, Sequence_number=2),
        module("decoder", 20, 30),
        operator("aten::mm", 21, 24, Sequence_number=3),
        operator("aten::mm", 25, 29, Sequence_number=4),
        backward(40, 45, 4),
        backward(46, 50, 3),
        backward(50, 60, 2),
        backward(61, 70, 1),
        backward(80, 90, 9),  # whose forward was not recorded
    )
    found = backward_ranges(Activity(trace))
    start_ns = trace.span_ns()[0]  # type: ignore[index]
    assert [(one.name, one.start_ns - start_ns, one.end_ns - start_ns) for one in found] == [
        ("decoder", 40_000, 50_000),
        ("encoder", 50_000, 70_000),
        ("encoder.1", 50_000, 60_000),
        ("encoder.0", 61_000, 70_000),
    ]
