"""Traces of a real device against what their programs knew of themselves (tests/data/h100)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from iotrace.analysis.results import Accelerator, Report
from iotrace.analysis.traces import analyse_traces
from iotrace.sources.kineto.reader import read_kineto

DATA = Path(__file__).parents[1] / "data" / "h100"
TRUTH = json.loads((DATA / "truth.json").read_text())


@cache
def report(name: str) -> Report:
    return analyse_traces([read_kineto(DATA / f"{name}.json.gz")])


def device(name: str) -> Accelerator:
    found = report(name).ranks[0].accelerator
    assert found is not None
    return found


def test_operations_and_their_time() -> None:
    shapes = {(one.name, one.shapes[0][0], one.types[0]): one for one in device("matmul").shapes}
    known = TRUTH["matmul"]
    for key, parts in {
        ("aten::mm", 4096, "float"): ("fp32", "tf32"),
        ("aten::mm", 8192, "c10::BFloat16"): ("bf16",),
        ("aten::mm", 128, "c10::BFloat16"): ("small",),
        ("aten::bmm", 16, "c10::BFloat16"): ("bmm",),
        ("aten::addmm", 512, "float"): ("addmm",),
    }.items():
        one = shapes[key]
        assert one.calls == sum(known[part]["calls"] for part in parts), key
        assert {one.flop_per_call} == {known[part]["flop_per_call"] for part in parts}, key
    product = shapes["aten::mm", 8192, "c10::BFloat16"]
    assert product.device_total_us / product.calls == pytest.approx(
        100 * known["bf16"]["event_ms_of_10"], rel=0.02
    )
    assert (product.peak_tflop_per_s, product.bound) == (989.4, "compute")
    assert product.roofline_pct == pytest.approx(80, abs=1)
    # Kernels with and without tensor cores, so that the peak is not known.
    assert shapes["aten::mm", 4096, "float"].peak_tflop_per_s is None
    single = [one for one in device("matmul").kernels if "xmma_gemm_f32f32" in one.name and one.calls == 11]
    by_cores = {one.tensor_cores: one for one in single}
    for uses, part in ((False, "fp32"), (True, "tf32")):
        assert by_cores[uses].total_us / 11 == pytest.approx(100 * known[part]["event_ms_of_10"], rel=0.06)


def test_an_occupancy_that_kineto_does_not_know_is_none() -> None:
    product = next(one for one in device("matmul").kernels if one.name.startswith("nvjet_sm90_tst_320x128"))
    assert (product.blocks_per_sm, product.occupancy_pct) == (1, None)
    assert device("matmul").occupancy_pct is None


def test_idle_time_after_each_synchronising_call() -> None:
    found, steps = device("sync"), report("sync").ranks[0].steps
    assert steps.count == len(TRUTH["sync"]["step_wall_ms"])
    assert steps.mean_ms is not None
    assert steps.mean_ms == pytest.approx(sum(TRUTH["sync"]["step_wall_ms"]) / steps.count, rel=0.01)
    longest = found.gaps[: steps.count - 1]  # the last one ends nothing
    assert all(4000 < one.us < 7000 and (one.kind, one.op) == ("host_wait", "aten::mm") for one in longest)
    assert found.gaps[steps.count - 1].us < 1000
    # 1 % of the time is no reason for advice; single precision without tensor cores is.
    assert [item.id for item in report("sync").recommendations] == ["no-tensor-cores"]
    assert found.launch_queue_max == 16
