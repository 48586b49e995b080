"""Results of which a test says a part."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_Made = TypeVar("_Made", bound=msgspec.Struct)


def unknown(kind: type[_Made], /, **known: Any) -> _Made:
    """Make a result of which nothing but `known` is known: what a report always has is None, too."""
    missing = {field.name: None for field in msgspec.structs.fields(kind) if field.required}
    return kind(**{**missing, **known})
