"""What slow steps paid, launches, idle time by its origin: traces with answers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.efficiency.slow_traced_steps import slow_steps_of
from iotrace.analysis.results import Accelerator, SlowStep
from iotrace.analysis.traces import analyse_traces
from tests.support.kineto import (
    Event,
    activity_of,
    annotation,
    data_wait,
    event,
    kernel,
    operator,
    step,
    trace_of,
)


def steps_of(*lengths: int, parts: dict[int, list[Event]] | None = None) -> list[SlowStep]:
    """Steps of these lengths, one behind another; `parts` stand at their starts, by the step's number."""
    events: list[Event | list[Event]] = []
    at = 0
    for number, length in enumerate(lengths):
        events.append(step(number, at, at + length))
        events.append(kernel(at + 1, at + 2, at))
        for made in (parts or {}).get(number, []):
            events.append({**made, "ts": made["ts"] + at})
        at += length
    return slow_steps_of(Activity(trace_of(*events)))


def call(name: str, start: float, end: float) -> Event:
    return event("cuda_runtime", name, start, end)


def test_the_first_step_pays_by_name() -> None:
    first = [
        data_wait(0, 1000),
        event("overhead", "Runtime Triggered Module Loading", 1000, 1200),
        operator("aten::cudnn_convolution", 1100, 1500),
        call("cudaEventSynchronize", 1300, 1310),
        annotation("_compile.compile_inner (dynamo_timed)", 1500, 2500),
        call("cudaMalloc", 2400, 2600),
        operator("c10d::allreduce_", 2600, 2700),
    ]
    (found,) = steps_of(4000, 500, 500, 500, 500, 500, parts={0: first})
    assert (found.step, found.is_first, found.ms, found.over_ms) == (0, True, 4.0, 3.5)
    assert found.parts_ms == pytest.approx(
        {
            "data_wait": 1.0,
            "module_loading": 0.2,
            "autotune": 0.3,
            "compile": 1.0,
            "allocation": 0.1,
            "communicator": 0.1,
        }
    )
    assert found.unnamed_ms == pytest.approx(3.5 - 2.7)


def test_a_slow_step_names_where_the_host_was() -> None:
    slow = [
        operator("aten::outer", 0, 3000),
        operator("aten::inner", 100, 2100),
        event("python_function", "<built-in method run_backward of X>", 3000, 4000),
    ]
    (found,) = steps_of(4000, 500, 500, 500, 500, parts={0: slow})
    assert found.host_ms == pytest.approx({"aten::inner": 2.0, "aten::outer": 1.0}, abs=0.001)


def test_the_verdict_names_what_the_first_step_paid() -> None:
    events = [step(0, 0, 4000), *[step(at, 3000 + 1000 * at, 4000 + 1000 * at) for at in range(1, 6)]]
    busy = [kernel(at, at + 900, at - 20) for at in range(4020, 9000, 1000)]
    tuning: list[Event | list[Event]] = [
        operator("aten::cudnn_convolution", 100, 3100),
        call("cudaEventSynchronize", 200, 300),
        kernel(10, 20, 5),
        kernel(3500, 3600, 3490),
    ]
    report = analyse_traces([trace_of(*events, *busy, *tuning)])
    assert report.verdict.why == "the first step takes 3.0 ms longer than the later ones: autotune 3.0 ms"
    assert report.verdict.kind == "device-idle"


def test_what_every_step_does_is_no_part_of_a_slow_one() -> None:
    usual = [call("cudaMalloc", 10, 110)]
    found = steps_of(1000, 1000, 1000, 5000, 1000, 1000, parts=dict.fromkeys(range(6), usual))
    assert [(one.step, one.is_first, one.parts_ms, one.unnamed_ms) for one in found] == [(3, False, {}, 4.0)]


def test_steps_that_only_look_alike() -> None:
    # A convolution that waits for nothing, one that is as usual, too few steps.
    plain = [operator("aten::cudnn_convolution", 0, 3000), call("cudaEventSynchronize", 3100, 3200)]
    (found,) = steps_of(4000, 500, 500, 500, 500, parts={0: plain})
    assert "autotune" not in found.parts_ms
    assert steps_of(600, 500, 500, 500) == []
    assert steps_of(4000, 500, 500) == []


def test_a_trace_without_steps_tells_what_all_of_it_did() -> None:
    events = operator("aten::mm", 0, 1000), call("cudaMalloc", 100, 300)
    (found,) = slow_steps_of(activity_of(*events, kernel(500, 600, 400)))
    assert (found.step, found.over_ms, found.unnamed_ms) == (None, None, None)
    assert found.parts_ms == {"allocation": 0.2}
    assert slow_steps_of(activity_of(operator("aten::mm", 0, 1000))) == []


def found_in(*events: Event | list[Event], **around: Any) -> Accelerator:
    found = accelerator_of([activity_of(*events, **around)])
    assert found is not None
    return found


def test_launches_and_their_queue() -> None:
    graph, replay = kernel(200, 210, launched=100)
    replay |= {"name": "cudaGraphLaunch", "dur": 20}
    again = {**graph, "ts": 220}
    found = found_in(kernel(10, 14, launched=0), kernel(14, 20, launched=2), graph, replay, again)
    kernels, graphs = found.launches
    assert (kernels.name, kernels.calls, kernels.host_us, kernels.delay_median_us) == (
        "cudaLaunchKernel",
        2,
        1,
        11,
    )
    # A graph's launch waits until its first kernel.
    assert (graphs.calls, graphs.host_median_us, graphs.delay_median_us, graphs.shorter_than_call) == (
        1,
        20,
        100,
        1,
    )
    # Waited: 10 + 12 + 100 + 120 us, over the 230 us from the first launch to the last end.
    assert found.launch_queue_mean == pytest.approx(242 / 230)
    assert found.launch_queue_max == 2
    alone = found_in(kernel(10, 14))
    assert (alone.launches, alone.launch_queue_mean, alone.launch_queue_max) == ([], None, None)


def test_idle_time_falls_back_from_module_to_operator_to_kernel() -> None:
    found = found_in(
        annotation("module:encoder", 90, 120),
        operator("aten::mm", 100, 110),
        operator("aten::add", 300, 310),
        kernel(0, 10, launched=-5),
        kernel(150, 160, launched=105),
        kernel(400, 410, launched=305),
        kernel(500, 510, launched=None, name="early"),
    )
    rows = [(one.kind, one.name, one.gaps, one.idle_us) for one in found.idle_by_origin]
    assert rows == [
        ("operator", "aten::add", 1, 240),
        ("module", "encoder", 1, 140),
        ("kernel", "early", 1, 90),
    ]
    assert sum(one.idle_us for one in found.idle_by_origin) == found.idle_us
    for one in found.idle_by_origin:
        assert sum(one.idle_by_class_us.values()) == one.idle_us


def test_operators_without_a_device() -> None:
    (rank,) = analyse_traces([trace_of(operator("aten::mm", 0, 100), operator("aten::mul", 20, 50))]).ranks
    assert rank.accelerator is None
    assert rank.operators is not None
    told = [(one.name, one.host_self_us, one.device_total_us) for one in rank.operators]
    assert told == [("aten::mm", 70, None), ("aten::mul", 30, None)]
