"""What all parts of a report share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a report: immutable, encoded with all fields."""


_Made = TypeVar("_Made", bound=ReportPart)
_Number = TypeVar("_Number", int, float)


def unknown(kind: type[_Made], /, **known: Any) -> _Made:
    """Make a result of which nothing but `known` is known: other fields are None, or as by default."""
    missing = {field.name: None for field in msgspec.structs.fields(kind) if field.required}
    return kind(**{**missing, **known})


def total(amounts: Iterable[_Number | None]) -> _Number | None:
    """Add up amounts; None where one of them is unknown."""
    amounts = list(amounts)
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
