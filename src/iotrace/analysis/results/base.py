"""What all parts of a report share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a report: immutable, encoded with all fields."""


_Number = TypeVar("_Number", int, float)


def total(amounts: Iterable[_Number | None]) -> _Number | None:
    """Add up amounts; None where one of them is unknown."""
    amounts = list(amounts)
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
