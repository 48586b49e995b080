"""Traces of Intel's devices: as Kineto's handlers of PTI write them (XpuptiActivityProfilerSession.cpp).

The kernel with its launch is a real one, of an Aurora node with torch 2.10; no whole trace could be had.
"""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.results import Accelerator, Report
from iotrace.analysis.traces import analyse_traces
from tests.support.kineto import Event, event, operator, step, trace_of

_AURORA = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::addmm",
        "pid": 9,
        "tid": 9,
        "ts": 95786069998.433,
        "dur": 44332.734,
        "args": {"External id": 5, "Sequence number": 1},
    },
    {
        "ph": "X",
        "cat": "xpu_runtime",
        "name": "urEnqueueKernelLaunch",
        "pid": 9,
        "tid": 9,
        "ts": 95786113648.115,
        "dur": 640.29,
        "args": {"External id": 5, "correlation": 4131},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm_kernel",
        "pid": 0,
        "tid": 0,
        "ts": 95786114294.336,
        "dur": 8.96,
        "args": {
            "External id": 5,
            "kernel_id": 1,
            "l0 queue": "0x000055d08b8fc138",
            "sycl queue": 64,
            "context": "0x000055d08918fc78",
            "correlation": 4131,
            "device": 0,
            "submitted": 1790952812114058336,
            "appended": 1790952812114058336,
        },
    },
]
_QUEUE = 64


def _on_device(kind: str, name: str, start: float, end: float, queue: int = _QUEUE, **args: Any) -> Event:
    found = event(kind, name, start, end, queue)
    found["pid"] = 0
    found["args"] |= {"device": 0, "sycl queue": queue, "l0 queue": "0x0000000000000002", **args}
    return found


def _call(name: str, start: float, end: float, correlation: int, category: str = "xpu_runtime") -> Event:
    return event(category, name, start, end, correlation=correlation)


def _report(*events: Any, **around: Any) -> Report:
    return analyse_traces([trace_of(*events, **around)])


def _accelerator(*events: Any) -> Accelerator:
    found = _report(*events).ranks[0].accelerator
    assert found is not None
    return found


def test_a_kernel_of_aurora_has_its_queue_launch_and_operator() -> None:
    found = _accelerator(*_AURORA)
    assert [(one.device, one.stream, one.events) for one in found.streams] == [(0, _QUEUE, 1)]
    assert [(one.name, one.op, one.total_us) for one in found.kernels] == [
        ("gemm_kernel", "aten::addmm", 8.96)
    ]
    assert [one.name for one in found.launches] == ["urEnqueueKernelLaunch"]
    assert found.without_launch == 0


@pytest.mark.parametrize(
    ("name", "direction", "pinned"),
    [
        ("Memcpy M2D (Memory -> Device)", "HtoD", False),
        ("Memcpy D2M (Device -> Memory)", "DtoH", False),
        ("Memcpy H2D (Host -> Device)", "HtoD", True),
        ("Memcpy D2D (Device -> Device)", "DtoD", None),
        ("Memcpy S2D (Shared -> Device)", None, None),
    ],
)
def test_copies_of_level_zero(name: str, direction: str | None, pinned: bool | None) -> None:
    copied = _on_device("gpu_memcpy", name, 20, 120, correlation=7, bytes=4_194_304)
    (found,) = _accelerator(_call("urEnqueueUSMMemcpy", 10, 15, 7), copied).memory_operations
    assert (found.direction, found.pinned, found.bytes) == (direction, pinned, 4_194_304)
    assert found.gb_per_s == pytest.approx(41.94, abs=0.01)


@pytest.mark.parametrize(
    ("around", "inner"),
    [
        ("c10d::allreduce_", "xccl:all_reduce"),
        ("c10d::allreduce_", "oneccl_bindings_for_pytorch::allreduce"),
    ],
)
def test_collectives_of_oneccl(around: str, inner: str) -> None:
    """The older binding records its own ranges, in which the kernel is launched that tells nothing itself."""
    told = {"Input Dims": [[1048576]], "Input type": ["c10::BFloat16"]}
    inside = operator(inner, 2, 30)
    inside["args"] |= told
    found = _accelerator(
        operator(around, 0, 40),
        inside,
        _call("urEnqueueKernelLaunch", 5, 15, 3),
        _on_device("kernel", "oneccl_allreduce_pcie<unsigned short>", 20, 420, 65, correlation=3),
    )
    assert [(one.kind, one.calls, one.bytes, one.total_us) for one in found.collectives] == [
        ("all_reduce", 1, 2_097_152, 400.0)
    ]
    assert found.comm_us == 400.0


def test_waits_for_queues_and_events_are_calls_that_wait() -> None:
    waits = ("urQueueFinish", "urEventWait", "zeCommandQueueSynchronize", "zeEventHostSynchronize")
    events = [
        _call(name, 100 * at, 100 * at + 90, at, "xpu_driver" if name.startswith("ze") else "xpu_runtime")
        for at, name in enumerate(waits, 1)
    ]
    launch = _call("zeCommandListAppendLaunchKernel", 10, 20, 99, "xpu_driver")
    found = _accelerator(*events, launch, _on_device("kernel", "gemm_kernel", 30, 400, correlation=99))
    assert {one.name: one.waits for one in found.runtime_calls} == {
        **dict.fromkeys(waits, True),
        "zeCommandListAppendLaunchKernel": False,
    }


def test_the_host_waits_for_its_queue_behind_which_the_device_idles() -> None:
    """Three steps, in which the host waits for each kernel before it launches the next one."""
    events: list[Event] = []
    number = 0
    for at in range(3):
        began = 1000.0 * at
        events.append(step(at, began, began + 1000))
        for part in range(2):
            number += 1
            start = began + 500 * part
            events += [
                _call("urEnqueueKernelLaunch", start + 10, start + 20, number),
                _on_device("kernel", "gemm_kernel", start + 30, start + 230, correlation=number),
                _call("urQueueFinish", start + 25, start + 240, 0),
            ]
    report = _report(*events)
    assert report.verdict.kind == "device-idle"
    found = report.ranks[0].accelerator
    assert found is not None
    assert found.idle_time is not None
    parts = {part.cause: part for part in found.idle_time.parts}
    assert parts["synchronisation"].call == "urQueueFinish"
    codes = [item.code for item in report.recommendations]
    assert codes[0] == "IO603"
    assert report.not_captured[1:] == []


def test_what_kineto_writes_beside_is_no_unknown_device() -> None:
    beside = [
        event("xpu_sync", "zeCommandQueueSynchronize", 10, 20, Type="HOST_COMMAND_QUEUE"),
        event("collective_comm", "xccl::allreduce", 10, 20, Communicator_id=1),
        event("overhead", "Buffer Flush", 30, 40),
    ]
    report = _report(step(1, 0, 1000), *beside, _on_device("kernel", "gemm_kernel", 30, 230))
    assert [item.what for item in report.not_captured] == ["causes of the data wait, files, I/O"]
