"""One account of the device's idle time: each cause where it holds, and the sum to the ns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.idle_time import CAUSES, span_of
from iotrace.analysis.device.kernels import category_of
from iotrace.analysis.intervals import Coverage
from iotrace.analysis.results import IdlePart
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace
from tests.support.kineto import annotation, data_wait, event, kernel, operator, step, trace_of
from tests.support.traces import SHARED, shared_trace

TRACES = [] if SHARED is None else sorted(str(path.relative_to(SHARED)) for path in SHARED.rglob("*.json.gz"))


def parts_of(trace: KinetoTrace) -> dict[str, IdlePart]:
    """The parts of the account, which sum to what the device did nothing in: to the ns."""
    activity = Activity(trace, by_updates=True)
    found = accelerator_of([activity])
    assert found is not None
    account, bounds = found.idle_time, span_of(activity)
    assert account is not None
    assert bounds is not None
    busy_ns = int(Coverage(*activity.busy()).within(*(np.array([each], np.int64) for each in bounds))[0])
    idle_ns = bounds[1] - bounds[0] - busy_ns
    assert round(1e3 * account.span_us) == bounds[1] - bounds[0]
    assert sum(round(1e3 * part.us) for part in account.parts) == round(1e3 * account.idle_us) == idle_ns
    assert {part.cause for part in account.parts} <= set(CAUSES)
    assert account.parts == sorted(account.parts, key=lambda part: -part.us)
    return {part.cause: part for part in account.parts}


def us(trace: KinetoTrace) -> dict[str, float]:
    return {cause: part.us for cause, part in parts_of(trace).items()}


def test_before_the_first_kernel_the_frame_that_holds_most_is_named() -> None:
    def frame(name: str, start: float, end: float) -> Any:
        return event("python_function", name, start, end)

    stack = [
        frame("infer.py(1): main", 0, 5000),
        frame("lib/pipe.py(129): preprocess", 5, 4000),
        frame("lib/image.py(7): resize", 10, 3000),
        frame("torch/nn/functional.py(3): interpolate", 6, 3999),
    ]
    found = parts_of(trace_of(*stack, kernel(4020, 5000, 4010)))
    before = found["before_first_kernel"]
    assert (before.us, before.gaps) == (4010, 1)
    assert (before.where, before.where_us) == ("lib/pipe.py(129): preprocess", 3995)
    assert found["launch_gap"].us == 10  # from its launch to its start


def test_without_stacks_the_operator_or_the_call_that_holds_most_is_named() -> None:
    calls = [operator("aten::addmm", 0, 990), event("cuda_runtime", "cudaFree", 5, 985)]
    before = parts_of(trace_of(*calls, kernel(1000, 2000, 995)))["before_first_kernel"]
    assert (before.us, before.where, before.call, before.call_us) == (995, "aten::addmm", "cudaFree", 980)


def test_a_first_kernel_long_after_its_launch_is_no_work_of_the_host() -> None:
    assert us(trace_of(operator("aten::mm", 0, 20), kernel(5000, 9000, 10))) == {
        "before_first_kernel": 10,
        "launch_call": 0.5,
        "launch_delay": 4989.5,
    }


def test_waits_for_data_count_before_all_else() -> None:
    trace = trace_of(
        step(1, 0, 1000), data_wait(0, 300), data_wait(500, 700), kernel(400, 500, 390), kernel(800, 990, 790)
    )
    waited = {"data_wait": 500, "before_first_kernel": 90}
    assert us(trace) == waited | {"launch_gap": 110, "after_last_kernel": 10}


def test_a_gap_of_more_than_a_launch_is_the_hosts_own_work() -> None:
    assert us(trace_of(kernel(0, 100, -1), kernel(250, 300, 240), kernel(800, 900, 790))) == {
        "host": 500,
        "launch_gap": 150 + 1,
    }


def test_gaps_before_the_first_use_of_a_kernel_are_told_apart() -> None:
    """What loads a kernel, or picks an algorithm, comes once; the same gap before a known kernel does not."""
    before = [kernel(0, 100, -1), kernel(800, 900, 790)]
    new = parts_of(trace_of(*before, kernel(5000, 5100, 4990, name="reduce")))["host"]
    assert (new.us, new.first_use_us, new.is_first_use) == (700 + 4100, 4100, False)
    only = parts_of(trace_of(kernel(0, 100, -1), kernel(5000, 5100, 4990, name="reduce")))["host"]
    assert (only.us, only.first_use_us, only.is_first_use) == (4900, 4900, True)
    known = parts_of(trace_of(kernel(0, 100, -1), kernel(5000, 5100, 4990)))["host"]
    assert (known.us, known.first_use_us, known.is_first_use) == (4900, 0, False)


def test_slow_launches_are_told_apart_from_work_of_the_host() -> None:
    first, second = kernel(0, 100, -1), kernel(5000, 5100, 150)
    second[1]["dur"] = 4840.0  # the call that launched it, from 150 on
    assert us(trace_of(first, second)) == {"launch_call": 4840, "host": 60, "launch_gap": 1}


def test_copies_to_pageable_memory_block_whatever_their_name() -> None:
    for name, is_blocking in (("Device -> Pageable", True), ("Device -> Pinned", False)):
        copy = kernel(100, 150, 20, f"Memcpy DtoH ({name})", category="gpu_memcpy")
        copy[1] |= {"name": "cudaMemcpyAsync", "dur": 135.0}
        found = us(trace_of(kernel(0, 100, -1), copy, kernel(500, 600, 495)))
        assert found == (
            {"blocking_copy": 350, "launch_gap": 1} if is_blocking else {"host": 350, "launch_gap": 1}
        )


@pytest.mark.parametrize(
    "call",
    [
        *("cudaStreamSynchronize", "hipDeviceSynchronize", "urQueueFinish", "urEventWait"),
        *("zeCommandQueueSynchronize", "cudaEventSynchronize", "cuCtxSynchronize"),
    ],
)
def test_the_gap_behind_a_call_that_waits_is_its_price(call: str) -> None:
    waiting = event("cuda_runtime", call, 20, 105)
    item = operator("aten::item", 10, 110)
    part = parts_of(trace_of(kernel(0, 100, -1), item, waiting, kernel(400, 500, 390)))["synchronisation"]
    assert (part.us, part.call, part.where) == (300, call, "aten::item")
    # What takes the host longer than 1 ms is its own work; the call itself stays.
    assert us(trace_of(kernel(0, 100, -1), waiting, kernel(4000, 5000, 3990))) == {
        "host": 3895,
        "synchronisation": 5,
        "launch_gap": 1,
    }


def test_a_graph_that_was_launched_in_time_shows_its_own_gaps() -> None:
    kernels = [kernel(start, start + 100) for start in (100, 700, 1300)]
    launch = event("cuda_runtime", "cudaGraphLaunch", 0, 20, correlation=900)
    for each in kernels:
        each[0]["args"]["correlation"] = 900
    assert us(trace_of(launch, *kernels)) == {"graph_replay": 1000, "launch_gap": 100}


def test_what_was_launched_in_time_on_a_stream_that_was_told_to_wait() -> None:
    told = event("cuda_runtime", "cudaStreamWaitEvent", 5, 6)
    first, second = kernel(0, 100, -1), kernel(300, 400, 10, stream=9)
    assert us(trace_of(first, told, second)) == {"stream_wait": 200, "launch_gap": 1}
    assert us(trace_of(first, second)) == {"unknown": 200, "launch_gap": 1}
    assert us(trace_of(first, kernel(120, 200, 10))) == {"kernel_gap": 20, "launch_gap": 1}
    assert us(trace_of(first, kernel(120, 200))) == {"kernel_gap": 20, "launch_gap": 1}


def test_the_host_communicates_and_allocates() -> None:
    for name, cause in (("gloo:all_reduce", "communication"), ("cudaMalloc", "allocation")):
        category = "user_annotation" if ":" in name else "cuda_runtime"
        called = event(category, name, 110, 900)
        found = us(trace_of(kernel(0, 100, -1), called, kernel(950, 999, 940)))
        assert found == {cause: 790, "launch_gap": 60 + 1}


def test_a_single_step_counts_to_its_end_and_several_to_that_of_the_device() -> None:
    one = trace_of(step(1, 0, 1000), kernel(10, 100, 5), annotation("post", 150, 990))
    assert us(one)["after_last_kernel"] == 900
    two = trace_of(step(1, 0, 200), step(2, 200, 1000), kernel(10, 100, 5), kernel(210, 300, 205))
    assert "after_last_kernel" not in us(two)


def test_updates_of_the_optimizer_are_steps_where_the_profiler_told_none() -> None:
    updates = [annotation("Optimizer.step#SGD.step", at + 80, at + 90) for at in (5000, 5100, 5200)]
    kernels = [kernel(at + 10, at + 95, at + 5) for at in (5000, 5100, 5200)]
    start = operator("aten::empty", 0, 4000)  # what comes before the first launch is in no step
    (starts, ends), numbers = Activity(trace_of(start, *updates, *kernels), by_updates=True).step_spans()
    assert ((ends - starts) / 1e3).tolist() == [85, 100, 100]
    assert numbers == [0, 1, 2]
    assert Activity(trace_of(*updates, *kernels)).step_spans()[1] == []
    assert Activity(trace_of(updates[0], *kernels), by_updates=True).step_spans()[1] == []
    told = trace_of(step(7, 5000, 5300), *updates, *kernels)
    assert Activity(told, by_updates=True).step_spans()[1] == [7]


def test_ranges_of_the_program_have_what_their_threads_launched() -> None:
    named = [annotation("train", 0, 100), annotation("loss", 40, 90), step(1, 0, 500), data_wait(0, 5)]
    device = [kernel(200, 230, 10), kernel(230, 240, 50), kernel(300, 350, 60, tid=77)]
    found = accelerator_of([Activity(trace_of(*named, *device))])
    assert found is not None
    times = {one.name: (one.calls, one.device_total_us, one.device_self_us) for one in found.ranges}
    assert times == {"train": (1, 40, 30), "loss": (1, 10, 10)}


def test_kernels_tell_how_even_they_are() -> None:
    found = accelerator_of([Activity(trace_of(*(kernel(at, at + at, at - 1) for at in (10, 20, 60))))])
    assert found is not None
    (one,) = found.kernels
    assert (one.median_us, one.min_us, one.max_us, one.mean_us) == (20, 10, 60, 30)
    assert one.deviation_us == pytest.approx(21.6, abs=0.1)


@pytest.mark.parametrize(
    ("kernel_name", "operator_name", "category"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add", "", "elementwise"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs", "aten::mm", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits", "", "attention"),
        ("triton_red_fused_native_layer_norm_3", "", "norm"),
        ("triton_poi_fused_add_0", "", "elementwise"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW", "", "norm"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32", "aten::cudnn_convolution", "convolution"),
        ("my_kernel", "aten::linear", "gemm"),
        ("my_kernel", "", "other"),
    ],
)
def test_kernels_by_category(kernel_name: str, operator_name: str, category: str) -> None:
    assert category_of(kernel_name, operator_name) == category


@pytest.mark.parametrize("name", TRACES)
def test_the_account_of_real_traces_sums_to_the_ns(name: str) -> None:
    trace = read_kineto(shared_trace(name))
    if not Activity(trace).device.any():
        pytest.skip("it shows no device")
    parts_of(trace)
