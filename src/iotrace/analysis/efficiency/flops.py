"""Floating-point operations of matrix products, convolutions and attention, from the inputs in a trace.

Operators by the shapes of their inputs: what each cost, FLOP/s, how near the roofline.

What a device does at most: its maker's figures, without sparsity. Devices not listed are unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from iotrace.analysis.device.kernels import Window, uses_tensor_cores
from iotrace.analysis.results import DevicePeaks, OperatorShapes
from iotrace.sources.kineto.trace import Column, Inputs, Shape

# As torch's dispatcher names it; the operator inside (_flash_attention_forward) does not count again.
_FLASH = re.compile(r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_backward)?$")
# By kind, and whether it is the backward: of its inputs in all, which is `is_causal`, and which a mask.
_CAUSAL = {
    ("flash", False): (7, 4, None),
    ("efficient", False): (8, 6, 3),
    ("cudnn", False): (9, 6, 3),
    ("flash", True): (15, 11, None),
    ("efficient", True): (13, 11, 4),
    ("cudnn", True): (16, 14, 8),
}
_IS = {"True": True, "False": False}
# By what torch writes as an input's type: our name of it, and its bytes.
_TYPES = {
    "float": ("float32", 4),
    "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2),
    "double": ("float64", 8),
    "c10::Float8_e4m3fn": ("float8", 1),
    "c10::Float8_e5m2": ("float8", 1),
}


class Work(msgspec.Struct, frozen=True):
    """What one call does: operations, bytes that it has to move at least, the type of what it multiplies.

    `at_most`: a mask may leave out some of the operations.
    """

    flop: int
    bytes: int | None
    type: str | None
    at_most: bool = False


def work_of(name: str, inputs: Inputs) -> Work | None:
    """Count the work of a call of operator `name`; None where it is none of these, or its inputs do not tell.

    A product of m × k by k × n takes 2mnk, a convolution 2 for each of its weights and places of the output
    (of the input where it is transposed), its backward as much for each of the two gradients that it makes.
    Attention counts all of the matrix, as torch.utils.flop_counter does; causal, what the mask leaves of it.
    """
    shapes = inputs.shapes
    match name:
        case "aten::mm" | "aten::_scaled_mm" | "aten::bmm":
            return _product(shapes[0], shapes[1], inputs, 0) if len(shapes) >= 2 else None
        case "aten::addmm" | "aten::baddbmm":
            return _product(shapes[1], shapes[2], inputs, 1) if len(shapes) >= 3 else None
        case "aten::convolution":
            return _convolution(inputs)
        case "aten::convolution_backward":
            return _convolution_backward(inputs)
    return _attention(name, inputs)


def _convolution(inputs: Inputs) -> Work | None:
    if len(inputs.shapes) < 9 or len(inputs.values) < 9:
        return None
    given, weight = inputs.shapes[:2]
    stride, padding, dilation = (_numbers(text) for text in inputs.values[3:6])
    transposed, groups = _IS.get(inputs.values[6]), _numbers(f"[{inputs.values[8]}]")
    if transposed is None or len(given) != len(weight) or len(given) < 3 or len(groups) != 1:
        return None
    sizes = given[2:]
    if not len(sizes) == len(stride) == len(padding) == len(dilation) or min(stride) < 1:
        return None
    made = tuple(
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, spread in zip(sizes, weight[2:], stride, padding, dilation, strict=True)
    )
    if transposed:
        return _convolved(given[0], sizes, weight, inputs, 0, 1, None)
    written = given[0] * weight[0] * math.prod(made)
    return _convolved(given[0], made, weight, inputs, 0, 1, math.prod(given) + math.prod(weight) + written)


def _convolution_backward(inputs: Inputs) -> Work | None:
    if len(inputs.shapes) < 11 or len(inputs.values) < 11:
        return None
    gradient, given, weight = inputs.shapes[:3]
    transposed = _IS.get(inputs.values[7])
    mask = [_IS.get(word.strip()) for word in inputs.values[10].strip("[]").split(",")]
    if transposed is None or len(mask) != 3 or None in mask or not len(gradient) == len(given) == len(weight):
        return None
    sizes = given[2:] if transposed else gradient[2:]
    return _convolved(given[0], sizes, weight, inputs, 1, sum(map(bool, mask[:2])), None)


def _convolved(
    batch: int, sizes: Shape, weight: Shape, inputs: Inputs, first: int, times: int, moved: int | None
) -> Work | None:
    """Count `times` a convolution of `weight` at places of `sizes`; `moved` are elements that it touches."""
    if not sizes or min(sizes) < 1 or not times:
        return None
    return _work(times * 2 * batch * math.prod(sizes) * math.prod(weight), inputs, first, moved)


def _numbers(text: str) -> list[int]:
    """Read a list of integers; empty where it is none."""
    words = [word.strip() for word in text.strip("[]").split(",")]
    return [int(word) for word in words] if all(word.lstrip("-").isdecimal() for word in words) else []


def _product(left: Shape, right: Shape, inputs: Inputs, first: int) -> Work | None:
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    batch = left[0] if len(left) == 3 else 1
    if len(left) == 3 and right[0] != batch:
        return None
    rows, inner, columns = left[-2], left[-1], right[-1]
    moved = batch * (rows * inner + inner * columns + rows * columns)
    return _work(2 * batch * rows * inner * columns, inputs, first, moved)


def _attention(name: str, inputs: Inputs) -> Work | None:
    found = _FLASH.match(name)
    if found is None:
        return None
    kind, backward = found[1], found[2] is not None
    first = 1 if backward else 0  # a backward's first input is the output's gradient
    shapes = inputs.shapes[first : first + 3]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return None
    (batch, heads, queries, width), (_, _, keys, same), (*_, values) = shapes
    if same != width:
        return None
    causal, masked = _mask(kind, backward, inputs)
    pairs = queries * keys
    if causal:
        if queries != keys:
            return None  # which corner the mask begins in is the kernel's own
        pairs = queries * (queries + 1) // 2
    if backward:  # once more the scores, then the gradients of values, scores, queries, keys
        flop = 2 * batch * heads * pairs * (3 * width + 2 * values)
    else:
        flop = 2 * batch * heads * pairs * (width + values)
    moved = None if backward else sum(map(math.prod, shapes)) + batch * heads * queries * values
    return _work(flop, inputs, first, moved, at_most=causal is None or masked)


def _mask(kind: str, backward: bool, inputs: Inputs) -> tuple[bool | None, bool]:
    """Tell whether attention is causal, None where that is not known, and whether it has another mask."""
    count, at, mask = _CAUSAL[kind, backward]
    if len(inputs.values) != count:
        return None, True
    return _IS.get(inputs.values[at]), mask is not None and inputs.types[mask : mask + 1] not in ((), ("",))


def _work(flop: int, inputs: Inputs, index: int, moved: int | None, at_most: bool = False) -> Work:
    """Make the work of a call that touches `moved` elements, of the type of the input at `index`."""
    written = inputs.types[index] if index < len(inputs.types) else ""
    name, size = _TYPES.get(written, (None, None))
    return Work(flop, None if moved is None or size is None else moved * size, name, at_most)


_MOST_SHAPES = 100


class _Sums(msgspec.Struct):
    """Sums of the calls of an operator with one kind of inputs, in ns.

    `tensor_cores`: what its kernels' names tell of them, each answer once.
    """

    calls: int = 0
    host: int = 0
    device: int = 0
    tensor_cores: set[bool] = msgspec.field(default_factory=set)


def shapes_of(windows: Sequence[Window], peaks: DevicePeaks | None) -> list[OperatorShapes]:
    """Sum up operators by name and inputs, the costliest for the device first; empty without shapes."""
    sums: dict[tuple[str, Inputs], _Sums] = {}
    for window in windows:
        if window.details.has_shapes:
            _add(sums, window)
    costliest = sorted(sums, key=lambda key: (-sums[key].device, -sums[key].host, key[0]))
    # Every product and attention is listed: their sums tell what the device did in all.
    works = {key: work_of(*key) for key in costliest}
    kept = [key for at, key in enumerate(costliest) if at < _MOST_SHAPES or works[key] is not None]
    return [_row(key, sums[key], works[key], peaks) for key in kept]


def _add(sums: dict[tuple[str, Inputs], _Sums], window: Window) -> None:
    tree, trace = window.tree, window.activity.trace
    events = trace.events
    outermost = np.flatnonzero(tree.outermost)
    rows = tree.rows[outermost]
    if not len(rows):
        return
    names, numbers = events.name[rows].astype(np.int64), events.details[rows].astype(np.int64)
    keys, group = np.unique(names * (len(trace.details) + 1) + numbers, return_inverse=True)
    columns = [
        np.bincount(group, weights=weights, minlength=len(keys)).astype(np.int64).tolist()
        for weights in (np.ones(len(rows)), events.duration_ns[rows], tree.device_total[outermost])
    ]
    tensor_cores = _tensor_cores(window, outermost, group, len(keys))
    for at, key in enumerate(keys.tolist()):
        name, number = divmod(key, len(trace.details) + 1)
        inputs = window.details.inputs(number)
        if inputs is None or not any(inputs.shapes):
            continue
        one = sums.setdefault((trace.names[name], inputs), _Sums())
        one.calls += columns[0][at]
        one.host += columns[1][at]
        one.device += columns[2][at]
        one.tensor_cores |= tensor_cores[at]


def _tensor_cores(window: Window, outermost: Column, group: Column, count: int) -> list[set[bool]]:
    """Tell per group whether kernels that its operators themselves launched use tensor cores."""
    tree, trace = window.tree, window.activity.trace
    groups = np.full(len(tree.rows) + 1, -1, dtype=np.int64)
    groups[outermost] = group
    rows = np.flatnonzero(tree.launcher >= 0)
    own = groups[tree.launcher[rows]]
    found: list[set[bool]] = [set() for _ in range(count)]
    pairs = np.unique(own[own >= 0] * len(trace.names) + trace.events.name[rows][own >= 0])
    for pair in pairs.tolist():
        at, name = divmod(pair, len(trace.names))
        uses = uses_tensor_cores(trace.names[name])
        if uses is not None:
            found[at].add(uses)
    return found


def _row(key: tuple[str, Inputs], one: _Sums, work: Work | None, peaks: DevicePeaks | None) -> OperatorShapes:
    name, inputs = key
    achieved = work.flop * one.calls / one.device / 1e3 if work is not None and one.device else None
    peak = _peak(work, one.tensor_cores, peaks)
    bound, attainable = None, peak
    if peaks is not None and peak is not None and work is not None and work.bytes:
        by_memory = work.flop / work.bytes * peaks.memory_gb_per_s / 1e3
        bound = "compute" if by_memory >= peak else "memory"
        attainable = min(peak, by_memory)
    share = None
    if work is not None and not work.at_most and achieved is not None and attainable is not None:
        share = 100 * achieved / attainable
    return OperatorShapes(
        name=name,
        shapes=[list(shape) for shape in inputs.shapes],
        types=list(inputs.types),
        calls=one.calls,
        host_total_us=one.host / 1e3,
        device_total_us=one.device / 1e3,
        flop_per_call=work.flop if work is not None else None,
        tflop_per_s=achieved,
        peak_tflop_per_s=peak,
        bound=bound,
        roofline_pct=share,
    )


def _peak(work: Work | None, tensor_cores: set[bool], peaks: DevicePeaks | None) -> float | None:
    """Choose the peak for the type of a product; single precision has two, and none where kernels differ."""
    if work is None or work.type is None or peaks is None:
        return None
    if work.type == "float32":
        if len(tensor_cores) != 1:
            return None
        return peaks.tflop_per_s.get("tf32" if True in tensor_cores else "float32")
    return peaks.tflop_per_s.get(work.type)


_LOOKED_UP = "2026-11-23"
# TFLOP/s by type, of chips that are built into several devices, or whose row would not fit a line.
_A100 = {"bfloat16": 312.0, "float16": 312.0, "tf32": 156.0, "float32": 19.5}
_H100 = {"bfloat16": 989.4, "float16": 989.4, "tf32": 494.7, "float32": 66.9, "float8": 1978.9}
_H100_PCIE = {"bfloat16": 756.0, "float16": 756.0, "tf32": 378.0, "float32": 51.2, "float8": 1513.0}
_B200 = {"bfloat16": 2250.0, "float16": 2250.0, "tf32": 1100.0, "float32": 75.0, "float8": 4500.0}
_MI210 = {"bfloat16": 181.0, "float16": 181.0, "float32": 45.3}
_MI300X = {"bfloat16": 1307.4, "float16": 1307.4, "float32": 163.4, "float8": 2614.9}
# Name in a trace, GB/s of memory, TFLOP/s by type, where they stand.
_PEAKS: tuple[tuple[str, float, dict[str, float], str], ...] = (
    # Of the DGX Station's V100 (V100-DGXS) no data sheet tells the peak.
    (r"V100-SXM2", 900.0, {"float16": 125.0, "float32": 15.7}, "NVIDIA V100 data sheet"),
    (r"V100-PCIE", 900.0, {"float16": 112.0, "float32": 14.0}, "NVIDIA V100 data sheet, PCIe"),
    (r"A100-SXM4-80GB", 2039.0, _A100, "NVIDIA A100 80GB data sheet"),
    (r"A100 80GB PCIe", 1935.0, _A100, "NVIDIA A100 80GB data sheet"),
    (r"A100-(?:SXM4|PCIE)-40GB", 1555.0, _A100, "NVIDIA A100 data sheet"),
    (r"H100 80GB HBM3", 3350.0, _H100, "NVIDIA H100 data sheet and Hopper white paper, SXM5"),
    (r"H100 PCIe", 2000.0, _H100_PCIE, "NVIDIA H100 data sheet, PCIe"),
    (r"H200(?! NVL)", 4800.0, _H100, "NVIDIA H200 data sheet, SXM"),
    (r"NVIDIA B200", 7700.0, _B200, "NVIDIA HGX B200 specifications, 180 GB at 1,000 W"),
    (r"MI210", 1638.4, _MI210, "AMD Instinct MI210 data sheet, matrix cores"),
    (r"MI300X", 5300.0, _MI300X, "AMD Instinct MI300X data sheet"),
)


def peaks_of(devices: Sequence[dict[str, Any]], used: Sequence[int]) -> DevicePeaks | None:
    """Look up the peaks of the devices that a trace used; None where they are unknown, or not all alike."""
    names = {str(one.get("name", "")) for one in devices if one.get("id") in used} or {
        str(one.get("name", "")) for one in devices
    }
    if len(names) != 1:
        return None
    (name,) = names
    for pattern, memory, tflop_per_s, source in _PEAKS:
        if re.search(pattern, name):
            return DevicePeaks(
                device=name,
                memory_gb_per_s=memory,
                tflop_per_s=tflop_per_s,
                source=source,
                looked_up=_LOOKED_UP,
            )
    return None


def peaks_of_windows(windows: Sequence[Window]) -> DevicePeaks | None:
    """Look up the peaks of the devices that a rank's traces used."""
    found = [
        peaks_of(window.activity.trace.devices, np.unique(window.activity.trace.events.device[rows]).tolist())
        for window in windows
        for rows in [window.activity.device]
    ]
    return found[0] if all(one == found[0] for one in found) else None
