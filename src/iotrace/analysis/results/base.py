"""What all parts of a report share, and the declaration of a figure, in the annotation of its field.

``Annotated[float | None, figure("power", said="power")]`` is all that a figure needs beside its value: the
tables of docs/definitions.md (``tools/docs figures``), the descriptions of ``iotrace schema``, the rows of
``--view system`` and a device's counters in the timeline are made of it. Nobody evaluates it at import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import TypeVar, get_args, get_origin, get_type_hints

import msgspec

# What names end with, before `_mean`, `_peak` and the like; the longer ones first.
_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_gb_per_s": "GB/s",
    "_mb_per_s": "MB/s",
    "_tflop_per_s": "TFLOP/s",
    "_per_second": "1/s",
    "_per_s": "1/s",
    "_bytes": "bytes",
    "_fraction": "0 to 1",
    "_pct": "%",
    "_ms": "ms",
    "_us": "µs",
    "_ns": "ns",
    "_seconds": "s",
    "_s": "s",
    "_w": "W",
    "_j": "J",
    "_mhz": "MHz",
    "_c": "°C",
}
_OVER_TIME = ("_mean", "_min", "_peak", "_max")
_OF = ("_per_step", "_per_sample", "_total", "_ci95")
_Number = TypeVar("_Number", int, float)


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a report: immutable, encoded with all fields."""


def total(amounts: Iterable[_Number | None]) -> _Number | None:
    """Add up amounts; None where one of them is unknown."""
    amounts = list(amounts)
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


class Figure(msgspec.Struct, frozen=True):
    """What is declared of a field. `null`: when it is unknown; `said`: its heading in a table, its name in a row.

    `place` orders columns and rows, where the order of the fields is not theirs. `absent` stands in a table
    where it is null. `counter`: its name in the timeline. `attribute` is its name in Python. `fold`: it is the
    mean or an extreme, as its name says, of a ``gauge`` that is sampled, or the rate of a ``counter``.
    """

    name: str
    attribute: str
    meaning: str
    unit: str
    null: str
    said: str
    place: int
    absent: str
    counter: str
    fold: str
    may_be_null: bool
    is_text: bool

    @property
    def sampled(self) -> str:
        """The name of what is sampled, of which this is the mean, the least or the most."""
        return _without(self.name, _OVER_TIME)

    @property
    def is_largest(self) -> bool:
        """Whether it is the largest of several values, beside which a mean may stand."""
        return any(word in ("peak", "max") for word in self.name.split("_"))


def figure(
    meaning: str,
    unit: str | None = None,
    *,
    null: str = "",
    said: str = "",
    place: int = 0,
    absent: str = "?",
    counter: str = "",
    fold: str = "",
) -> msgspec.Meta:
    """Declare a figure; without `unit` it is the one that the field's name ends with."""
    known = {"meaning": meaning, "unit": unit, "null": null, "said": said, "place": place, "absent": absent}
    known |= {"counter": counter, "fold": fold}
    in_words = meaning + (f"; in {unit}" if unit else "") + (f"; null: {null}" if null else "")
    return msgspec.Meta(description=in_words, extra=known)


@cache
def figures_of(kind: type[msgspec.Struct]) -> Sequence[Figure]:
    """List what the fields of `kind` declare, in their order."""
    found = []
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        value, *abouts = get_args(hints[field.name]) or (None,)
        for about in abouts:
            if isinstance(about, msgspec.Meta) and about.extra is not None:
                kinds = get_args(value) if isinstance(value, UnionType) else (value,)
                own = {"name": field.encode_name, "attribute": field.name, "may_be_null": type(None) in kinds}
                is_text = any(kind in (str, list[str]) or get_origin((*get_args(kind), None)[0]) is list for kind in kinds)
                unit = about.extra["unit"] or _unit_of(field.name)
                found.append(Figure(**{**about.extra, **own, "unit": unit, "is_text": is_text}))
    return found


def _unit_of(name: str) -> str:
    stem = "_" + _without(_without(name, _OF), _OVER_TIME)
    return next((unit for ending, unit in _UNITS.items() if stem.endswith(ending)), "")


def _without(name: str, endings: tuple[str, ...]) -> str:
    return next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), name)
