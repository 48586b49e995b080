"""How well a device is used: blocks, occupancy, FLOP/s, memory; traces with answers by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.kernels import uses_tensor_cores
from iotrace.analysis.efficiency.flops import Work, traffic_of, work_of
from iotrace.analysis.efficiency.peaks import peaks_of
from iotrace.analysis.program.memory import memory_of
from iotrace.analysis.results import Accelerator
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import Details, Inputs
from tests.support.kineto import MAIN, PID, Event, activity_of, event, kernel, operator, trace_of
from tests.support.traces import SHARED, shared_trace

H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}


def found_in(*events: Event | list[Event], **around: Any) -> Accelerator:
    found = accelerator_of([activity_of(*events, **around)])
    assert found is not None
    return found


def filled(
    start: float, end: float, blocks: float, occupancy: float, warps: float = 8, **more: Any
) -> list[Event]:
    made = kernel(start, end, launched=start - 5, **more)
    made[0]["args"] |= {
        "blocks per SM": blocks,
        "warps per SM": warps,
        "est. achieved occupancy %": occupancy,
    }
    return made


def test_sm_efficiency_is_of_the_span_and_occupancy_of_kernels() -> None:
    found = found_in(
        filled(0, 100, 0.25, 10), filled(100, 200, 4, 50), filled(300, 400, 0.5, 30, name="late")
    )
    assert found.sm_efficiency_pct == pytest.approx(100 * (25 + 100 + 50) / 400)
    assert found.occupancy_pct == pytest.approx((10 + 50 + 30) / 3)
    by_name = {one.name: one for one in found.kernels}
    assert (by_name["gemm"].blocks_per_sm, by_name["gemm"].occupancy_pct) == (2.125, 30)


def test_kernels_beside_each_other_use_no_more_than_all_of_the_device() -> None:
    found = found_in(filled(0, 100, 0.75, 10), filled(50, 150, 0.75, 10, stream=8))
    assert found.sm_efficiency_pct == pytest.approx(100 * (37.5 + 50 + 37.5) / 150)


def test_an_occupancy_of_0_that_cannot_be_is_unknown() -> None:
    found = found_in(filled(0, 100, 1, 0, warps=12))
    assert (found.sm_efficiency_pct, found.occupancy_pct, found.kernels[0].occupancy_pct) == (100, None, None)
    small = found_in(filled(0, 100, 0.01, 0, warps=0.1))
    assert small.occupancy_pct == 0
    amd = found_in(filled(0, 100, 1, 20), kernel(200, 300, 150))  # a kernel that tells nothing
    assert (amd.sm_efficiency_pct, amd.kernels[0].blocks_per_sm) == (None, 1)


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize(
    "name", ["resnet50_num_workers_0.pt.trace.json.gz", "resnet50_num_workers_4.pt.trace.json.gz"]
)
def test_occupancy_and_sm_efficiency_are_those_of_tensorboard(name: str) -> None:
    path = shared_trace(name)
    theirs = json.loads((path.parent / "reference.json").read_text())[name]["tb"]
    found = accelerator_of([Activity(read_kineto(path))])
    assert found is not None
    assert found.occupancy_pct is not None
    assert found.sm_efficiency_pct is not None
    assert found.occupancy_pct == pytest.approx(theirs["occupancy_pct"], abs=5e-5)
    # Theirs is of the steps' time, ours of the device's span.
    used_us = theirs["sm_efficiency"] * theirs["Total"] * len(theirs["steps"])
    assert found.sm_efficiency_pct * found.span_us / 100 == pytest.approx(used_us, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("volta_h884gemm_128x64_ldg8_nn", True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn", True),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", True),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8", False),
        ("ampere_sgemm_128x64_nn", False),
        ("cutlass_80_simt_sgemm_128x64", False),
        ("void at::native::vectorized_elementwise_kernel<4, float>", None),
        ("Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S", None),
    ],
)
def test_what_names_of_kernels_tell_of_tensor_cores(name: str, uses: bool | None) -> None:
    assert uses_tensor_cores(name) is uses


def test_operations_of_products_and_attention() -> None:
    def flop(name: str, *shapes: tuple[int, ...], type: str = "c10::BFloat16") -> int | None:
        found = work_of(name, Inputs(shapes, (type,) * len(shapes)))
        return found.flop if found else None

    assert flop("aten::mm", (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert flop("aten::addmm", (7,), (3, 5), (5, 7), (), ()) == 2 * 3 * 5 * 7
    assert flop("aten::bmm", (2, 3, 5), (2, 5, 7)) == 2 * 2 * 3 * 5 * 7
    heads = (2, 4, 16, 8)
    name = "aten::_scaled_dot_product_flash_attention"
    assert flop(name, heads, heads, heads) == 2 * (2 * 2 * 4 * 16 * 16 * 8)
    assert flop(f"{name}_backward", heads, heads, heads, heads) == 5 * (2 * 2 * 4 * 16 * 16 * 8)
    # What does not fit, or is neither, is not guessed.
    for name, *shapes in (("aten::mm", (3, 5), (6, 7)), ("aten::mm", ()), ("aten::add", (3, 5), (5, 7))):
        assert flop(name, *shapes) is None


def worked(name: str, shapes: Sequence[tuple[int, ...]], values: list[str]) -> Work | None:
    """The work of a call whose other inputs have these values; those after the tensors."""
    rest = len(values) - len(shapes)
    types = ["float"] * len(shapes) + ["Scalar"] * rest
    return work_of(name, Inputs((*shapes, *[()] * rest), tuple(types), tuple(values)))


CONVOLUTION = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("given", "weight", "changed", "flop"),
    [
        # 8 images, 64 maps of 32 x 32 places, each of 32 x 3 x 3 weights.
        ((8, 32, 64, 64), (64, 32, 3, 3), {}, 2 * 8 * 64 * 32 * 32 * 32 * 9),
        ((8, 32, 64, 64), (64, 8, 3, 3), {8: "4"}, 2 * 8 * 64 * 32 * 32 * 8 * 9),  # groups: a quarter
        ((1, 3, 9, 9), (4, 3, 3, 3), {3: "[1, 1]", 4: "[0, 0]", 5: "[2, 2]"}, 2 * 4 * 5 * 5 * 3 * 9),
        ((2, 3, 10), (4, 3, 3), {3: "[1]", 4: "[0]", 5: "[1]", 7: "[0]"}, 2 * 2 * 4 * 8 * 3 * 3),
        # Transposed: each place of the input with all weights.
        ((8, 32, 16, 16), (32, 64, 3, 3), {6: "True"}, 2 * 8 * 16 * 16 * 32 * 64 * 9),
        # What does not fit together, or was not recorded, is not guessed.
        ((8, 32, 64, 64), (64, 32, 3, 3), {6: ""}, None),
        ((8, 32, 64, 64), (64, 32, 3, 3), {3: "[2]"}, None),
        ((8, 32, 64, 64), (64, 32, 3, 3), {3: "[0, 0]"}, None),
        ((8, 32, 64, 64), (64, 32, 3), {}, None),
        ((1, 3, 2, 2), (4, 3, 7, 7), {4: "[0, 0]"}, None),
    ],
)
def test_operations_of_convolutions(
    given: tuple[int, ...], weight: tuple[int, ...], changed: dict[int, str], flop: int | None
) -> None:
    values = [changed.get(at, value) for at, value in enumerate(CONVOLUTION)]
    found = worked("aten::convolution", [given, weight, weight[:1]], values)
    assert (found.flop if found else None) == flop
    assert worked("aten::conv2d", [given, weight, weight[:1]], values) is None  # counts once, inside


@pytest.mark.parametrize(
    ("mask", "times"),
    [("[True, True, True]", 2), ("[False, True, True]", 1), ("[False, False, True]", None), ("", None)],
)
def test_a_convolutions_backward_counts_the_gradients_that_it_makes(mask: str, times: int | None) -> None:
    shapes = [(16, 64, 109, 109), (16, 3, 224, 224), (64, 3, 7, 7)]
    values = ["", "", "", "[64]", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = worked("aten::convolution_backward", shapes, values)
    once = 2 * 16 * 64 * 109 * 109 * 3 * 7 * 7
    assert (found.flop if found else None) == (None if times is None else times * once)


@pytest.mark.parametrize(
    ("causal", "keys", "pairs", "at_most"),
    [
        ("False", 16, 16 * 16, False),
        ("True", 16, 16 * 17 // 2, False),
        ("True", 32, None, None),  # where the mask begins is not told
        ("", 16, 16 * 16, True),
    ],
)
def test_causal_attention_counts_the_pairs_that_its_mask_leaves(
    causal: str, keys: int, pairs: int | None, at_most: bool | None
) -> None:
    queries, others = (2, 4, 16, 8), (2, 4, keys, 8)
    values = ("", "", "", "", "True", "0.", causal, "False", "")
    types = ("c10::BFloat16",) * 3 + ("",) + ("Scalar",) * 5
    shapes = (queries, others, others, *[()] * 6)
    found = work_of("aten::_scaled_dot_product_cudnn_attention", Inputs(shapes, types, values))
    assert (found and found.flop) == (None if pairs is None else 2 * 2 * 2 * 4 * pairs * 8)
    assert (found and found.at_most) is at_most


def test_attention_with_a_mask_of_its_own_has_that_work_at_most() -> None:
    heads = (2, 4, 16, 8)
    values = ("", "", "", "", "True", "0.", "False", "False", "")
    types = ("c10::BFloat16",) * 4 + ("Scalar",) * 5
    name = "aten::_scaled_dot_product_cudnn_attention"
    masked = work_of(name, Inputs((heads, heads, heads, (16, 16), *[()] * 5), types, values))
    older = work_of(name, Inputs((heads, heads, heads), types[:3], values[:7]))  # has other inputs
    for found in (masked, older):
        assert found is not None
        assert (found.flop, found.at_most) == (2 * 2 * 2 * 4 * 16 * 16 * 8, True)


def test_values_of_inputs_are_kept_where_they_tell_the_work() -> None:
    made = operator("aten::convolution", 0, 5)
    made["args"] |= {
        "Input Dims": [[8, 32, 64, 64], [64, 32, 3, 3], [64], *[[]] * 6],
        "Input type": ["float"] * 3 + ["ScalarList"] * 6,
        "Concrete Inputs": CONVOLUTION,
    }
    other = operator("aten::add", 6, 7)
    other["args"] |= {"Input Dims": [[2]], "Input type": ["float"], "Concrete Inputs": ["7"]}
    details = Details(trace_of(made, other))
    numbers = details.trace.events.details.tolist()
    kept, left = details.inputs(numbers[0]), details.inputs(numbers[1])
    assert kept is not None
    assert (kept.values, kept.shapes[1]) == (tuple(CONVOLUTION), (64, 32, 3, 3))
    assert left is not None
    assert left.values == ()


def product(start: float, size: int, took: float, name: str, kind: str = "c10::BFloat16") -> list[Event]:
    made = operator("aten::mm", start, start + 5)
    made["args"] |= {"Input Dims": [[size, size]] * 2, "Input type": [kind] * 2}
    return [made, *kernel(start + 10, start + 10 + took, launched=start + 1, name=name)]


def test_flop_per_second_and_the_roofline() -> None:
    size = 4096
    found = found_in(product(0, size, 200, "nvjet_x"), product(1000, size, 200, "nvjet_x"), **H100)
    (one,) = found.shapes
    achieved = 2 * size**3 / 200e-6 / 1e12
    assert (one.calls, one.device_total_us, one.flop_per_call) == (2, 400, 2 * size**3)
    assert one.tflop_per_s == pytest.approx(achieved)
    assert one.bound == "compute"
    assert one.roofline_pct == pytest.approx(100 * achieved / 989.4)
    assert found.peaks is not None
    assert found.peaks.memory_gb_per_s == 3350
    small = found_in(product(0, 128, 2, "nvjet_x"), **H100).shapes[0]
    intensity = 2 * 128**3 / (3 * 128 * 128 * 2)
    assert small.tflop_per_s is not None
    assert small.bound == "memory"
    assert small.roofline_pct == pytest.approx(100 * small.tflop_per_s / (intensity * 3.35))


def test_single_precision_has_the_peak_of_its_kernels() -> None:
    def peak(*names: str) -> float | None:
        made = [product(1000 * at, 4096, 200, name, "float") for at, name in enumerate(names)]
        return found_in(*made, **H100).shapes[0].peak_tflop_per_s

    assert peak("ampere_sgemm_nn") == 66.9
    assert peak("sm90_xmma_gemm_f32f32_tf32f32_f32_nn") == 494.7
    assert peak("unknown_gemm") is None
    assert peak("ampere_sgemm_nn", "sm90_xmma_gemm_f32f32_tf32f32_f32_nn") is None


def test_without_shapes_or_a_known_device_nothing_is_told() -> None:
    bare = operator("aten::mm", 0, 5)
    assert found_in(bare, kernel(10, 20, 1), **H100).shapes == []
    found = found_in(product(0, 512, 100, "nvjet_x"), deviceProperties=[{"id": 0, "name": "NVIDIA X1"}])
    assert found.peaks is None
    assert (found.shapes[0].roofline_pct, found.shapes[0].peak_tflop_per_s) == (None, None)
    assert found.shapes[0].tflop_per_s is not None


BF16, HALF = "c10::BFloat16", "c10::Half"


@pytest.mark.parametrize(
    ("name", "shapes", "types", "moved"),
    [
        ("aten::mul", [(16, 8), (16, 1)], [BF16, BF16], ("elementwise", 2 * (128 + 16 + 128))),
        ("aten::mul", [(8,), (16, 8)], [BF16, BF16], ("elementwise", 2 * (8 + 128 + 128))),
        ("aten::mul", [(16, 8), ()], ["float", "double"], ("elementwise", 4 * 256)),  # by a number
        ("aten::add_", [(16, 8), (16, 8)], ["float", "float"], ("elementwise", 4 * 384)),
        ("aten::silu", [(16, 8)], [HALF], ("elementwise", 2 * 256)),
        ("aten::copy_", [(16, 8), (16, 8), ()], ["float", BF16, "Scalar"], ("elementwise", 128 * 6)),
        ("aten::native_layer_norm", [(16, 8), (), (8,), (8,)], [BF16, "", BF16, BF16], ("norm", 2 * 256)),
        ("aten::native_layer_norm_backward", [(16, 8), (16, 8)], [BF16, BF16], ("norm", 2 * 384)),
        ("aten::_softmax", [(16, 8), ()], ["float", "Scalar"], ("reduction", 4 * 256)),
        ("aten::mean", [(16, 8), ()], ["float", "ScalarList"], ("reduction", 4 * 128)),
        ("aten::add", [(16, 8), (16, 8)], ["float", BF16], None),  # the output's type is not told
        ("aten::add", [(16, 8), (3, 8)], [BF16, BF16], None),
        ("aten::add", [(), (16, 8)], ["float", "float"], None),
        ("aten::silu", [(16, 8)], ["c10::Strange"], None),
        ("aten::mm", [(16, 8), (8, 4)], [BF16, BF16], None),
        ("aten::embedding", [(9, 8), (4,)], [BF16, "long int"], None),
    ],
)
def test_bytes_that_an_operator_moves_at_least(
    name: str, shapes: list[Any], types: list[str], moved: tuple[str, int] | None
) -> None:
    assert traffic_of(name, Inputs(tuple(shapes), tuple(types))) == moved


def elementwise(at: float, size: int, us: float, name: str = "vectorized_elementwise_kernel") -> list[Event]:
    shapes = {"Input_Dims": [[size, size], [size, size]], "Input_type": [BF16, BF16]}
    kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    op = "aten::copy_" if kind == "gpu_memcpy" else "aten::mul"
    return [operator(op, at, at + 5, **shapes), *kernel(at + 10, at + 10 + us, at + 1, name, category=kind)]


def test_rates_of_memory_and_their_share_of_a_category() -> None:
    other = [operator("aten::sigmoid_grad", 5000, 5005), *kernel(5010, 5050, 5001, "elementwise_kernel")]
    found = found_in(elementwise(0, 4096, 60), elementwise(1000, 4096, 60), other, **H100)
    (row,) = found.shapes
    moved = 3 * 4096 * 4096 * 2
    rate = moved / 60e3
    assert (row.bytes_per_call, row.bound, row.device_self_us) == (moved, "memory", 120)
    assert row.gb_per_s == pytest.approx(rate)
    assert row.roofline_pct == pytest.approx(100 * rate / 3350)
    (category,) = found.categories
    assert (category.gb_per_s, category.roofline_pct) == pytest.approx((rate, 100 * rate / 3350))
    assert category.known_pct == pytest.approx(75)


def test_no_rate_of_memory_is_told_where_a_copy_or_a_cache_is() -> None:
    """A copy may go over the bus; what a cache holds comes faster than the memory gives it."""
    copied = found_in(elementwise(0, 4096, 60, "Memcpy HtoD (Pinned -> Device)"), **H100).shapes[0]
    assert (copied.bytes_per_call, copied.gb_per_s) == (None, None)
    cached = found_in(elementwise(0, 1024, 1), **H100).shapes[0]
    assert cached.gb_per_s == pytest.approx(3 * 1024 * 1024 * 2 / 1e3)
    assert cached.roofline_pct is None


# Name in traces, unit's number, FLOP of each a clock, clock in GHz, for 16 bits; then for single precision.
_UNITS = (
    ("Tesla V100-SXM2-32GB", (640, 128, 1.53), (5120, 2, 1.53)),
    ("Tesla V100-PCIE-16GB", (640, 128, 1.37), (5120, 2, 1.37)),
    ("NVIDIA A100-SXM4-80GB", (432, 512, 1.41), (6912, 2, 1.41)),
    ("NVIDIA H100 80GB HBM3", (528, 1024, 1.83), (16896, 2, 1.98)),
    ("NVIDIA H100 PCIe", (456, 1024, 1.62), (14592, 2, 1.755)),
    ("NVIDIA L40S", (568, 256, 2.49), (18176, 2, 2.52)),
    ("NVIDIA GeForce RTX 3090", (328, 128, 1.695), (10496, 2, 1.695)),
    ("NVIDIA GeForce RTX 4090", (512, 128, 2.52), (16384, 2, 2.52)),
    ("AMD Instinct MI250X / MI250", (110, 1024, 1.7), (110, 256, 1.7)),
    ("AMD Instinct MI325X", (304, 2048, 2.1), (304, 256, 2.1)),
    ("AMD Instinct MI210", (104, 1024, 1.7), (104, 256, 1.7)),
    ("AMD Instinct MI300X", (304, 2048, 2.1), (304, 256, 2.1)),
)


@pytest.mark.parametrize(("name", "half", "single"), _UNITS)
def test_peaks_are_those_of_units_and_clocks(
    name: str, half: tuple[int, int, float], single: tuple[int, int, float]
) -> None:
    found = peaks_of([{"id": 0, "name": name}], [0])
    assert found is not None
    for own, kind in ((half, "float16"), (single, "float32")):
        assert math.prod(own) / 1e3 == pytest.approx(found.tflop_per_s[kind], rel=0.007), kind


@pytest.mark.parametrize(
    "name",
    [
        "Tesla V100-DGXS-32GB",
        "NVIDIA GB200",
        "NVIDIA A100-PG509-200",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA H20-3e",
        "",
    ],
)
def test_no_peak_is_told_of_a_device_that_is_only_alike(name: str) -> None:
    assert peaks_of([{"id": 0, "name": name}], [0]) is None


def memory(at: float, size: int, held: int, address: int, **more: int) -> Event:
    args = {"Bytes": size, "Total Allocated": held, "Total Reserved": 9000, "Addr": address}
    return {
        "ph": "i",
        "name": "[memory]",
        "pid": PID,
        "tid": MAIN,
        "ts": at,
        "s": "t",
        "args": {**args, "Device Type": 1, "Device Id": 0, **more},
    }


def test_memory_at_the_peak_by_phase_and_operator() -> None:
    trace = trace_of(
        event("user_annotation", "Optimizer.step#SGD.step", 300, 400),
        operator("aten::mm", 0, 50, Sequence_number=1),
        operator("aten::add", 310, 320),
        memory(10, 4000, 5000, 1),
        memory(20, 512, 5512, 2),
        memory(30, -512, 5000, 2),  # freed before the peak
        memory(311, 1024, 6024, 2),  # its address again: the peak
        memory(400, 7000, 0, 3),  # shared memory, which is not the allocator's
        memory(500, -4000, 2024, 1),
    )
    found = memory_of([trace])
    assert found is not None
    (device,) = found.devices
    assert (device.device, device.peak_bytes, device.peak_at_us) == ("CUDA 0", 6024, 311)
    assert device.peak_by_phase_bytes == {
        "forward": 4000,
        "backward": 0,
        "optimizer": 1024,
        "other": 0,
        "before": 1000,
    }
    assert {one.name: (one.allocated_bytes, one.at_peak_bytes) for one in found.operators} == {
        "aten::mm": (4512, 4000),
        "aten::add": (1024, 1024),
        "(outside of operators)": (7000, 0),
    }
    assert [(one.name, one.allocated_bytes, one.at_peak_bytes) for one in found.modules] == [
        ("(outside of modules)", 4000 + 512 + 1024 + 7000, 5024)
    ]
    assert [
        (one.at_us, one.held_bytes, {name: size for name, size in one.by_phase_bytes.items() if size})
        for one in found.evolution
    ] == [
        (30, 5000, {"forward": 4000, "before": 1000}),
        (311, 6024, {"forward": 4000, "optimizer": 1024, "before": 1000}),
        (500, 2024, {"optimizer": 1024, "before": 1000}),
    ]


def test_memory_of_traces_without_addresses_or_totals() -> None:
    old = memory(10, 4000, -1, -1)
    for key in ("Total Allocated", "Total Reserved", "Addr"):
        del old["args"][key]
    found = memory_of([trace_of(operator("aten::mm", 0, 50), old)])
    assert found is not None
    assert (found.devices[0].peak_bytes, found.devices[0].peak_by_phase_bytes) == (None, None)
    assert (found.operators[0].allocated_bytes, found.operators[0].at_peak_bytes) == (4000, None)
    assert memory_of([trace_of(operator("aten::mm", 0, 50))]) is None
