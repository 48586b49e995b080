"""Floating-point operations of operators, from the shapes of their inputs: matrix products and attention."""

from __future__ import annotations

import math
import re

import msgspec

from iotrace.sources.kineto.details import Inputs, Shape

# As torch's dispatcher names it; the operator inside (_flash_attention_forward) does not count again.
_FLASH = re.compile(r"aten::_scaled_dot_product_(?:flash|efficient|cudnn)_attention(_backward)?$")
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
    """What one call does: operations, bytes that it has to move at least, the type of what it multiplies."""

    flop: int
    bytes: int | None
    type: str | None


def work_of(name: str, inputs: Inputs) -> Work | None:
    """Count the work of a call of operator `name`; None where it is no matrix product or attention.

    A product of m × k by k × n takes 2mnk. Attention counts as torch.utils.flop_counter does: all of the
    matrix, whatever a mask leaves out.
    """
    shapes = inputs.shapes
    match name:
        case "aten::mm" | "aten::_scaled_mm" | "aten::bmm":
            return _product(shapes[0], shapes[1], inputs, 0) if len(shapes) >= 2 else None
        case "aten::addmm" | "aten::baddbmm":
            return _product(shapes[1], shapes[2], inputs, 1) if len(shapes) >= 3 else None
    return _attention(name, inputs)


def _product(left: Shape, right: Shape, inputs: Inputs, first: int) -> Work | None:
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    batch = left[0] if len(left) == 3 else 1
    if len(left) == 3 and right[0] != batch:
        return None
    rows, inner, columns = left[-2], left[-1], right[-1]
    named = _type(inputs, first)
    moved = None
    if named is not None:
        moved = batch * (rows * inner + inner * columns + rows * columns) * named[1]
    return Work(2 * batch * rows * inner * columns, moved, named[0] if named else None)


def _attention(name: str, inputs: Inputs) -> Work | None:
    found = _FLASH.match(name)
    if found is None:
        return None
    first = 1 if found[1] else 0  # a backward's first input is the output's gradient
    shapes = inputs.shapes[first : first + 3]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return None
    (batch, heads, queries, width), (_, _, keys, same), (*_, values) = shapes
    if same != width:
        return None
    named = _type(inputs, first)
    if found[1]:  # once more the scores, then the gradients of values, scores, queries, keys
        flop = 2 * batch * heads * queries * keys * (3 * width + 2 * values)
    else:
        flop = 2 * batch * heads * queries * keys * (width + values)
    moved = None
    if named is not None and not found[1]:
        moved = named[1] * (sum(map(math.prod, shapes)) + batch * heads * queries * values)
    return Work(flop, moved, named[0] if named else None)


def is_attention(name: str) -> bool:
    """Whether an operator is attention, whose work a mask may make less than counted."""
    return _FLASH.match(name) is not None


def _type(inputs: Inputs, index: int) -> tuple[str, int] | None:
    return _TYPES.get(inputs.types[index]) if index < len(inputs.types) else None
