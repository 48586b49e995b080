"""A line of Kineto's JSON as msgspec reads it: the fields and arguments that figures are made of."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

# Counters are numbers, numbers in strings, or "", "N/A", null.
_Number = int | float | str | None
_Text = str | int | float | None


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """``args`` of an event; two spellings of the external id are torch's."""

    correlation: _Number = -1
    stream: _Number = -1
    device: _Number = -1
    external_id: _Number = msgspec.field(name="External id", default=-1)
    old_external_id: _Number = msgspec.field(name="external id", default=-1)
    sequence: _Number = msgspec.field(name="Sequence number", default=-1)
    forward_thread: _Number = msgspec.field(name="Fwd thread id", default=-1)
    bytes: _Number = -1
    name: _Text = None
    collective: _Text = msgspec.field(name="Collective name", default=None)
    in_elements: _Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: _Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: _Number = msgspec.field(name="Group size", default=None)
    dtype: _Text = None
    group: _Text = msgspec.field(name="Process Group Name", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw(b""))
    collective_sequence: _Number = msgspec.field(name="Seq", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))


NO_ARGUMENTS = Arguments()


class Line(msgspec.Struct, gc=False):
    """One event. Times in us, as floats: exact to the ns below 2^43 us."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    id: int | str | None = None
    args: Arguments | None = None


class ExactLine(Line, gc=False):
    """`Line` for traces that count fractions of us from the epoch."""

    ts: Decimal | None = None  # type: ignore[assignment]


class Collective(msgspec.Struct, frozen=True):
    """What a trace tells of one collective; None where it does not.

    `elements` is the larger of what went in and came out, per rank; `ranks` are global numbers.
    """

    name: str
    elements: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None


def collective_of(name: str, args: Arguments) -> Collective:
    """The collective that is told by the arguments (NCCL's kernels), else by a range's name (``gloo:…``)."""
    if args.collective is not None:
        sizes = [size for size in (_int(args.in_elements), _int(args.out_elements)) if size is not None]
        return Collective(
            name=str(args.collective),
            elements=max(sizes, default=None),
            dtype=None if args.dtype is None else str(args.dtype),
            group=None if args.group is None else str(args.group),
            group_size=_int(args.group_size),
            ranks=_ranks(args.group_ranks),
            sequence=_int(args.collective_sequence),
        )
    types = _decoded(args.input_type)
    return Collective(
        name=name.partition(":")[2],
        elements=_elements(_decoded(args.input_dims)),
        dtype=str(types[0]) if isinstance(types, list) and types else None,
    )


def _decoded(raw: msgspec.Raw) -> Any:
    if not bytes(raw):
        return None
    try:
        value = msgspec.json.decode(raw)
        # torch writes some lists as strings of lists.
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, UnicodeDecodeError):
        return None


def _elements(dims: Any) -> int | None:
    """The number of elements of all tensors, from a list of their shapes (or a list of such lists)."""
    if not isinstance(dims, list):
        return None
    if dims and all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        return product
    counts = [count for count in map(_elements, dims) if count is not None]
    return sum(counts) if counts else None


def _ranks(raw: msgspec.Raw) -> tuple[int, ...] | None:
    found = _decoded(raw)
    if isinstance(found, list) and found and all(isinstance(rank, int) for rank in found):
        return tuple(found)
    return None  # torch shortens long lists with dots


def _int(value: _Number) -> int | None:
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
