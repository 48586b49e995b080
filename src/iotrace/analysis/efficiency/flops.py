"""What an operator has to do, from its inputs in a trace: floating-point operations, bytes to move.

Operations of matrix products, convolutions and attention; bytes, at least, of elementwise, norm and reduction
operators: each input is read once and the output written once; where its shape or type does not follow,
nothing is told. An input that was expanded counts as if its memory were as large as its shape.
"""

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


# By what torch writes as an input's type: the bytes of an element.
_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}
_UNARY = (
    "abs ceil clamp cos erf exp floor gelu log neg reciprocal relu round rsqrt sigmoid silu sin sqrt tanh"
)
_BINARY = "add div maximum minimum mul pow sub"
_GRADIENTS = "gelu hardtanh leaky_relu sigmoid silu tanh threshold"
_REDUCED = "amax amin argmax argmin linalg_vector_norm max mean min norm prod std sum var"
# How many of its first inputs an operator reads; it writes as much as the first of them.
_WHOLE = {"_softmax": 1, "_log_softmax": 1, "_softmax_backward_data": 2, "_log_softmax_backward_data": 2}
_NORMS = "native_layer_norm native_group_norm cudnn_batch_norm miopen_batch_norm"
_FORWARD_NORMS = "native_batch_norm _fused_rms_norm"  # what their backward reads is not known
_AS_FIRST = {
    **{f"aten::{name}": ("elementwise", 2) for name in _BINARY.split()},
    **{f"aten::{name}": ("elementwise", 1) for name in _UNARY.split()},
    **{f"aten::{name}_backward": ("elementwise", 2) for name in _GRADIENTS.split()},
    **{f"aten::{name}": ("reduction", count) for name, count in _WHOLE.items()},
    **{f"aten::{name}": ("norm", 1) for name in f"{_NORMS} {_FORWARD_NORMS}".split()},
    **{f"aten::{name}_backward": ("norm", 2) for name in _NORMS.split()},
}
_READ_ONLY = {f"aten::{name}" for name in _REDUCED.split()}
Moved = tuple[str, int]


def traffic_of(name: str, inputs: Inputs) -> Moved | None:
    """Tell the category of a call of operator `name`, and the bytes that it moves at least; None if unknown.

    The weights of a norm, and what it keeps for its backward, are small beside its input, and left out.
    """
    sizes = list(zip(inputs.shapes, inputs.types, strict=False))
    if not sizes or not sizes[0][0]:
        return None
    if name in _READ_ONLY:
        read = _bytes(*sizes[0])
        return None if read is None else ("reduction", read)
    if name == "aten::copy_":  # into the first input, from the second one
        written, read = _bytes(*sizes[0]), _bytes(*sizes[1]) if len(sizes) > 1 else None
        return None if written is None or read is None else ("elementwise", written + read)
    known = _AS_FIRST.get(name.removesuffix("_"))
    if known is None or (name.endswith("_") and known[0] != "elementwise"):
        return None
    category, count = known
    operands = [(shape, kind) for shape, kind in sizes[:count] if shape]
    kinds = {kind for _, kind in operands}
    made = sizes[0][0] if name.endswith("_") or category != "elementwise" else _broadcast(operands)
    size = _BYTES.get(operands[0][1])
    # Of operands of two types the output's does not follow from their names alone.
    if made is None or size is None or len(kinds) != 1:
        return None
    return category, (sum(math.prod(shape) for shape, _ in operands) + math.prod(made)) * size


def _bytes(shape: Shape, kind: str) -> int | None:
    size = _BYTES.get(kind)
    return None if size is None else math.prod(shape) * size


def _broadcast(operands: list[tuple[Shape, str]]) -> Shape | None:
    """The shape that elementwise operands make; None where they do not fit."""
    longest = max(len(shape) for shape, _ in operands)
    padded = [(1,) * (longest - len(shape)) + shape for shape, _ in operands]
    made = []
    for sizes in zip(*padded, strict=True):
        others = {size for size in sizes if size != 1}
        if len(others) > 1:
            return None
        made.append(others.pop() if others else 1)
    return tuple(made)
