"""The critical path of made-up traces, by hand, and waits between streams."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.device.critical_path import KINDS, critical_path_of
from iotrace.analysis.device.stream_waits import Queues, stream_waits_of
from iotrace.analysis.results import CriticalPath
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import AUTOGRAD, Event, activity_of, data_wait, event, kernel, operator, step
from tests.support.traces import SHARED


def call(name: str, start: float, end: float, number: int = -1) -> Event:
    return event("cuda_runtime", name, start, end, **({"correlation": number} if number >= 0 else {}))


def synchronisation(name: str, at: float, stream: int, number: int, **more: Any) -> Event:
    found = event("cuda_sync", name, at, at + 1, stream, device=0, stream=stream, correlation=number)
    found["args"] |= more
    return found


def path_of(*events: Event | list[Event]) -> CriticalPath:
    found = critical_path_of([Queues(activity_of(*events))])
    assert found is not None
    assert set(found.by_kind_us) == set(KINDS)
    assert sum(found.by_kind_us.values()) == pytest.approx(found.span_us)
    return found


def kinds(found: CriticalPath) -> dict[str, float]:
    return {kind: us for kind, us in found.by_kind_us.items() if us}


def test_a_step_that_waits_for_its_kernels_is_made_of_them() -> None:
    found = path_of(
        step(1, 0, 100),
        operator("aten::mm", 2, 8),
        kernel(10, 40, 5, "first"),
        kernel(42, 80, 6, "second"),
        call("cudaDeviceSynchronize", 9, 85),
    )
    # Back from 100: the host to 85, the call to 80, both kernels, the first one's launch, what was before.
    assert kinds(found) == pytest.approx(
        {"host": 15 + 2, "runtime": 5, "kernel": 38 + 30, "kernel_gap": 2, "launch_delay": 5, "operator": 3}
    )
    assert [(one.kind, one.name, one.us) for one in found.parts[:2]] == [
        ("kernel", "second", 38),
        ("kernel", "first", 30),
    ]
    assert (found.steps, found.of_steps, found.span_us) == (1, 1, 100)


def test_kernels_that_nobody_waits_for_are_not_on_the_path() -> None:
    """The same kernels; the call that waits begins when they have ended, or waits for nothing at all."""
    kernels = [kernel(10, 40, 5, "first"), kernel(42, 80, 6, "second")]
    for last in (call("cudaDeviceSynchronize", 90, 95), call("cudaEventQuery", 9, 85)):
        found = path_of(step(1, 0, 100), *kernels, last)
        assert found.by_kind_us["kernel"] == found.by_kind_us["launch_delay"] == 0


def test_a_late_launch_leads_back_to_the_host() -> None:
    """The second kernel is launched after the first one ended: the first is not on the path."""
    found = path_of(
        step(1, 0, 100),
        kernel(10, 20, 5, "first"),
        data_wait(21, 60),
        kernel(70, 90, 65, "second"),
        call("cudaStreamSynchronize", 66, 92),
    )
    assert kinds(found) == pytest.approx(
        {"host": 8 + 5 + 20.5, "runtime": 2 + 0.5, "kernel": 20, "launch_delay": 5, "data_wait": 39}
    )


def test_a_path_ends_where_its_step_begins() -> None:
    """The kernel was launched in the step before, and began there."""
    found = path_of(
        step(1, 0, 50), step(2, 50, 100), kernel(20, 80, 10), call("cudaDeviceSynchronize", 55, 80)
    )
    assert (found.steps, found.span_us) == (2, 100)
    assert kinds(found) == pytest.approx({"host": 49.5 + 20, "runtime": 0.5, "kernel": 30})


def test_what_launched_a_kernel_is_unknown_where_the_trace_does_not_tell() -> None:
    found = path_of(
        step(1, 0, 100), kernel(30, 80), call("cudaDeviceSynchronize", 20, 80), kernel(95, 99, 90)
    )
    assert kinds(found) == pytest.approx({"host": 19.5, "runtime": 0.5, "kernel": 50, "unknown": 30})


def test_collectives_and_copies_are_told_apart_from_kernels() -> None:
    found = path_of(
        step(1, 0, 100),
        kernel(10, 30, 5, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy"),
        kernel(30, 80, 6, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        call("cudaDeviceSynchronize", 8, 80),
    )
    assert (found.by_kind_us["memory"], found.by_kind_us["collective"]) == (20, 50)


def test_backward_counts_where_the_training_thread_waits_for_it() -> None:
    found = path_of(
        step(1, 0, 100),
        operator("aten::mm", 0, 20),
        operator("MmBackward0", 30, 60, AUTOGRAD, Fwd_thread_id=1, Sequence_number=4),
        kernel(70, 71, 50, tid=AUTOGRAD),
        operator("aten::sum", 80, 90),
        operator("pin_memory", 92, 99, tid=99),  # a thread that launches nothing
    )
    assert {one.name: one.us for one in found.parts if one.kind == "operator"} == pytest.approx(
        {"MmBackward0": 29.5, "aten::mm": 20, "aten::sum": 10}
    )


def waiting(*more: Event, begins: float = 61, ended: float = 60) -> list[Event | list[Event]]:
    """Stream 8 is told at 12 to wait for stream 7, whose kernel ends at 60; its own one is launched at 15."""
    return [
        step(1, 0, 100),
        kernel(10, ended, 5, "producer", 7),
        call("cudaEventRecord", 11, 11.5, 900),
        call("cudaStreamWaitEvent", 12, 12.5, 901),
        kernel(begins, 80, 15, "consumer", 8),
        call("cudaDeviceSynchronize", 20, 80),
        *more,
    ]


MEASURED = synchronisation(
    "Stream Wait Event", 12, 8, 901, wait_on_stream=7, wait_on_cuda_event_record_corr_id=900
)


@pytest.mark.parametrize(("more", "measured"), [((), False), ((MEASURED,), True)])
def test_a_stream_that_waits_for_another_leads_to_it(more: tuple[Event, ...], measured: bool) -> None:
    events = waiting(*more)
    found = path_of(*events)
    # Back from 100: the host to 80, the consumer, 1 us after the producer's end, the producer and its launch.
    assert kinds(found) == pytest.approx(
        {"host": 20 + 5, "kernel": 19 + 50, "stream_wait": 1, "launch_delay": 5}
    )
    assert (found.stream_waits_measured, found.stream_waits_inferred) == ((1, 0) if measured else (0, 1))
    (one,) = stream_waits_of([Queues(activity_of(*events))])
    assert (one.stream, one.waits_for, one.calls, one.measured) == (8, 7, 1, measured)
    assert (one.kernel, one.kernel_before) == ("consumer", "producer")
    # It was ready when it was launched at 15, and waited until 60.
    assert one.waited_us == pytest.approx(45)


def test_what_only_looks_like_a_wait_of_a_stream_is_none() -> None:
    # What it was told to wait for had ended when it was launched.
    assert stream_waits_of([Queues(activity_of(*waiting(ended=14)))]) == []
    # Long after the other's end it began: that is not what it waited for, as far as is known.
    assert stream_waits_of([Queues(activity_of(*waiting(begins=79, ended=50)))]) == []
    # Without a call that told it to wait.
    untold = waiting()
    del untold[3]
    assert stream_waits_of([Queues(activity_of(*untold))]) == []
    found = path_of(*untold)
    assert (found.by_kind_us["kernel"], found.by_kind_us["launch_delay"]) == (19, 46)
    # Kineto's event without the stream, as it writes where it missed the call that recorded the event.
    unknown = synchronisation(
        "Stream Wait Event", 12, 8, 901, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1
    )
    (one,) = stream_waits_of([Queues(activity_of(*waiting(unknown)))])
    assert not one.measured


def test_a_call_that_waits_for_one_stream_waits_for_no_other() -> None:
    events: list[Event | list[Event]] = [
        step(1, 0, 100),
        kernel(10, 60, 5, "short", 7),
        kernel(11, 79, 6, "long", 8),
        call("cudaStreamSynchronize", 20, 80, 77),
    ]
    assert path_of(*events).parts[0].name == "long"
    told = path_of(*events, synchronisation("Stream Sync", 20, 7, 77))
    assert (told.parts[0].name, told.by_kind_us["kernel"]) == ("short", 50)


def test_nothing_is_said_of_a_trace_that_launches_nothing() -> None:
    assert critical_path_of([Queues(activity_of(event("python_function", "train.py(1): f", 0, 9)))]) is None


@pytest.mark.skipif(SHARED is None, reason="needs the traces that others recorded")
@pytest.mark.parametrize("name", ["nccl_2ranks_rank0.json.gz", "mi210_gpu_only.json.gz"])
def test_the_kinds_sum_to_the_steps_of_real_traces(name: str) -> None:
    from iotrace.analysis.device.activity import Activity

    assert SHARED is not None
    activity = Activity(read_kineto(SHARED / name))
    found = critical_path_of([Queues(activity)])
    assert found is not None
    assert sum(found.by_kind_us.values()) == pytest.approx(found.span_us)
    assert found.by_kind_us["unknown"] == 0
    assert found.by_kind_us["kernel"] + found.by_kind_us["collective"] > 0
