"""What all parts of a report share."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a report: immutable, encoded with all fields."""


_Made = TypeVar("_Made", bound=ReportPart)


def unknown(kind: type[_Made], /, **known: Any) -> _Made:
    """Make a result of which nothing but `known` is known: other fields are None, or as by default."""
    missing = {field.name: None for field in msgspec.structs.fields(kind) if field.required}
    return kind(**{**missing, **known})
