"""What an agent has recorded, rows and all, as dictionaries."""

from __future__ import annotations

from typing import Any

from iotrace.session import names

_TYPES = ("batch", "produced", "round", "blocked", "exposed", "phase", "mark")
_NAMED = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS}


def told(records: list[Any]) -> list[dict[str, Any]]:
    """The records of a recorder, in order."""
    return [_row(record) if isinstance(record, tuple) else record for record in records]


def _row(row: tuple[int, ...]) -> dict[str, Any]:
    known = dict(zip(names.ROW_FIELDS[row[0]], row[1:], strict=True))
    return {"type": _TYPES[row[0]], **{k: _NAMED[k][v] if k in _NAMED else v for k, v in known.items()}}
