"""Bytes that elementwise, norm and reduction operators have to move at least, from the inputs in a trace.

Each input is read once and the output written once; where its shape or type does not follow, nothing is told.
An input that was expanded counts as if its memory were as large as its shape.
"""

from __future__ import annotations

import math

from iotrace.sources.kineto.trace import Inputs, Shape

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
