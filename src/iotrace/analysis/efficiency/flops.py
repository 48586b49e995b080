"""Floating-point operations of matrix products, convolutions and attention, from the inputs in a trace."""

from __future__ import annotations

import math
import re

import msgspec

from iotrace.sources.kineto.trace import Inputs, Shape

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
