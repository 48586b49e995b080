"""Advice from a trace alone: each rule where it holds, and silent where a trace only looks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import compute_of
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import rank_part
from iotrace.analysis.results import Recommendation
from iotrace.analysis.traces import analyse_traces
from iotrace.sources.session import open_session
from tests.support.fuzz import make_session
from tests.support.kineto import AUTOGRAD, Event, annotation, event, kernel, operator, step, trace_of

STEPS, STEP_US = 4, 1000
AMPERE = {"deviceProperties": [{"id": 0, "name": "A100", "computeMajor": 8}]}
VOLTA = {"deviceProperties": [{"id": 0, "name": "V100", "computeMajor": 7}]}


def advice(*parts: Any, **around: Any) -> dict[str, Recommendation]:
    """The advice on four steps of 1 ms, each with what `parts` make of its start."""
    events: list[Event | list[Event]] = []
    for number in range(STEPS):
        at = number * STEP_US
        events.append(step(number, at, at + STEP_US))
        events += [made for part in parts for made in part(at)]
    return {item.id: item for item in analyse_traces([trace_of(*events, **around)]).recommendations}


def computing(start: int, end: int, launched: int | None = None, name: str = "gemm") -> Any:
    return lambda at: [kernel(at + start, at + end, at + (start - 5 if launched is None else launched), name)]


def copying(start: int, end: int, name: str) -> Any:
    def make(at: int) -> list[Any]:
        return [kernel(at + start, at + end, at + start - 5, name, 9, category="gpu_memcpy", bytes=1000)]

    return make


def calling(name: str, start: int, end: int, first: int = 0) -> Any:
    def make(at: int) -> list[Any]:
        return [event("cuda_runtime", name, at + start, at + end)] if at >= first * STEP_US else []

    return make


def test_copies_from_pageable_memory() -> None:
    pageable, pinned = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
    busy = computing(300, 990)
    found = advice(copying(100, 250, pageable), busy)
    assert found["pageable-copies"].gain_ms_per_step == pytest.approx(0.15)
    assert found["pageable-copies"].evidence["copies"] == STEPS
    assert set(advice(copying(100, 250, pinned), busy)) == {"copies-not-overlapped"}
    # Hidden by a kernel, short, of unknown memory, or the other way, there is nothing to win.
    for alike in (
        copying(400, 550, pageable),
        copying(100, 110, pageable),
        copying(100, 250, "Memcpy HtoD (Host -> Device)"),
        copying(100, 250, "Memcpy DtoH (Device -> Pageable)"),
    ):
        assert not {"pageable-copies", "copies-not-overlapped"} & set(advice(alike, busy))


def test_a_session_is_advised_on_its_device_too(tmp_path: Path) -> None:
    one = SessionAnalysis(open_session(make_session(tmp_path / "session"))).ranks[0]
    before = rank_part(one).advice
    events = [step(number, number * STEP_US, (number + 1) * STEP_US) for number in range(STEPS)]
    copies = copying(100, 250, "Memcpy HtoD (Pageable -> Device)")
    made = [each for number in range(STEPS) for each in copies(number * STEP_US)]
    vars(one)["compute"] = compute_of([Activity(trace_of(*events, *made))], whole=True)
    found = rank_part(one).advice
    assert "IO601" not in [item.code for item in before]
    (copying_advice,) = (item for item in found if item.code == "IO601")
    assert (copying_advice.id, copying_advice.rank) == ("pageable-copies", one.rank.number)


def test_calls_that_wait_for_the_device() -> None:
    late = computing(700, 990, launched=690)
    waiting = calling("cudaStreamSynchronize", 50, 605)

    def item(at: int) -> list[Any]:
        return [
            operator("aten::item", at + 40, at + 620),
            operator("aten::_local_scalar_dense", at + 45, at + 610),
        ]

    found = advice(computing(0, 600), waiting, item, late)["synchronising-calls"]
    assert found.gain_ms_per_step == pytest.approx(0.1)
    assert "4 calls wait for the device" in found.text
    assert "aten::_local_scalar_dense" in found.text
    # The host was late for another reason; the call returned at once; the next kernel had been launched.
    assert advice(computing(0, 600), late) == {}
    assert advice(computing(0, 600), calling("cudaStreamSynchronize", 50, 60), late) == {}
    assert advice(computing(0, 600), waiting, computing(700, 990, launched=20)) == {}


def test_the_line_of_python_where_stacks_were_recorded() -> None:
    def stack(at: int) -> list[Any]:
        frames = [("train.py(41): train_step", 30, 640), ("contextlib.py(81): inner", 32, 635)]
        frames += [("torch/_tensor.py(9): item", 35, 630), ("<frozen os>(7): getenv", 40, 620)]
        return [event("python_function", name, at + start, at + end) for name, start, end in frames]

    found = advice(
        computing(0, 600), calling("cudaStreamSynchronize", 50, 605), stack, computing(700, 990, launched=690)
    )
    assert "train.py(41): train_step" in found["synchronising-calls"].text


def many(length: int, apart: int, first: int = 0) -> Any:
    def make(at: int) -> list[Any]:
        starts = range(at + first, at + STEP_US - apart, apart)
        return [kernel(start, start + length, start - 1) for start in starts]

    return make


def test_short_kernels_that_are_launched_too_late() -> None:
    found = advice(many(5, 10))["launch-bound"]
    assert found.evidence["median_us"] == 5
    assert found.gain_ms_per_step == pytest.approx(0.5, abs=0.01)
    assert advice(many(60, 100)) == {}  # few and long
    assert "launch-bound" not in advice(many(9, 10))  # the device is busy
    waits = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, STEPS * STEP_US)
    assert "launch-bound" not in advice(many(5, 10), lambda at: [] if at else [waits])


def test_communication_that_nothing_hides() -> None:
    def backward(at: int) -> list[Any]:
        return [operator("autograd::engine::evaluate_function: MmBackward0", at + 5, at + 500, AUTOGRAD)]

    def launched_there(at: int) -> list[Any]:
        return [kernel(at + 10, at + 700, at + 8, "gemm", tid=AUTOGRAD)]

    def reduced(start: int, name: str = "ncclDevKernel_AllReduce_Sum_f32") -> Any:
        return lambda at: [kernel(at + start, at + start + 250, at + 20, name, stream=20)]

    found = advice(backward, launched_there, reduced(710))["exposed-communication"]
    assert found.gain_ms_per_step == pytest.approx(0.25)
    hidden = advice(backward, launched_there, reduced(400))
    assert not {"exposed-communication", "exposed-exchanges"} & set(hidden)
    assert "exposed-communication" not in advice(launched_there, reduced(710))  # no training
    exchanged = advice(backward, launched_there, reduced(710, "ncclDevKernel_SendRecv"))
    assert set(exchanged) == {"exposed-exchanges"}  # nothing overlaps these by itself


def test_allocations_behind_the_first_step() -> None:
    early, late = computing(0, 400), computing(600, 990, launched=10)
    found = advice(early, calling("cudaMalloc", 420, 580, first=1), late)["allocations"]
    assert found.evidence["calls"] == STEPS - 1
    assert found.gain_ms_per_step == pytest.approx(0.16 * 3 / 4)
    assert advice(early, lambda at: calling("cudaMalloc", 420, 580)(at) if not at else [], late) == {}
    assert advice(computing(0, 990), calling("cudaMalloc", 420, 580), late) == {}  # the device worked
    assert advice(early, calling("cudaMallocAsync", 420, 580), late) == {}


def test_products_without_tensor_cores() -> None:
    single, tensor = "ampere_sgemm_128x64_nn", "ampere_s1688gemm_128x64_nn"
    found = advice(computing(0, 990, name=single), **AMPERE)["no-tensor-cores"]
    assert found.evidence["kernels"] == 1
    assert advice(computing(0, 990, name=tensor), **AMPERE) == {}
    assert advice(computing(0, 990, name=single), **VOLTA) == {}  # it has no TF32
    assert advice(computing(0, 990, name=single)) == {}
    assert advice(computing(0, 100, name=single), computing(110, 990, launched=90), **AMPERE) == {}
