"""What an agent wrote as rows of integers, as some come with every batch or step: columns, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.records import (
    BatchRecord,
    Blocked,
    Exposed,
    IteratorEnd,
    Pause,
    PhaseOnDevice,
    Produced,
    Record,
    Round,
    Rows,
    StepMark,
    Tick,
)

Columns = npt.NDArray[np.void]  # of one of `DTYPES`

DTYPES = tuple(np.dtype([(field, "<i8") for field in fields]) for fields in names.ROW_FIELDS)
KINDS: dict[type[Record], int] = {
    BatchRecord: names.BATCH_ROW,
    Produced: names.PRODUCED_ROW,
    Round: names.ROUND_ROW,
    Blocked: names.BLOCKED_ROW,
    Exposed: names.EXPOSED_ROW,
    PhaseOnDevice: names.DEVICE_PHASE_ROW,
    StepMark: names.MARK_ROW,
    Pause: names.PAUSE_ROW,
}
TYPES = {kind: of for of, kind in KINDS.items()}
# When a record was made: those that come with each batch, and those that stand between them.
TIMES: dict[type, Any] = {
    BatchRecord: attrgetter("delivered_ns"),
    Round: attrgetter("mono_ns"),
    Blocked: attrgetter("end_ns"),
    Produced: attrgetter("prepared_ns"),
    IteratorEnd: attrgetter("mono_ns"),
    StepMark: attrgetter("mono_ns"),
    Tick: lambda record: int(record.clock[0]),
}
_TIME_FIELDS = (
    "delivered_ns",
    "prepared_ns",
    "mono_ns",
    "end_ns",
    None,
    None,
    "mono_ns",
    "end_ns",
)  # by kind
_MOST = 2**62  # as of all numbers in records: what a damaged line holds shall not overflow
_NAMED = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS, "pause": names.PAUSES}
# Fields that are always known, or say themselves what -1 means.
_NUMBERS = frozenset(
    (
        *("iterator", "epoch", "generation", "index", "tid", "wait_start_ns", "delivered_ns", "ahead"),
        *("backward_count", "taken_ns", "prepared_ns", "number", "mono_ns", "cpu_ns", "run_delay_ns"),
        *("start_ns", "end_ns", "exposed_ns", "device_ns"),
    )
)


def columns_of(rows: Rows) -> Columns:
    """The rows of one record; none where it is damaged."""
    if not 0 <= rows.kind < len(DTYPES):
        return np.empty(0, DTYPES[0])
    width = 1 + len(names.ROW_FIELDS[rows.kind])
    whole = len(rows.rows) // (8 * width) * width
    found = np.frombuffer(rows.rows, "<i8", whole).reshape(-1, width)[:, 1:]
    possible = (found <= _MOST) & (found >= -_MOST)
    if not possible.all():
        found = found[possible.all(axis=1)]
    columns: Columns = np.ascontiguousarray(found).view(DTYPES[rows.kind]).reshape(-1)
    return columns


def joined(kind: int, parts: Sequence[Columns]) -> Columns:
    """The rows of one kind, in the order in which they were made."""
    if len(parts) == 1:
        rows = parts[0]
    else:  # as bytes: numpy copies fields one by one otherwise
        whole = f"V{DTYPES[kind].itemsize}"
        rows = np.concatenate([np.empty(0, whole), *(part.view(whole) for part in parts)]).view(DTYPES[kind])
    field = _TIME_FIELDS[kind]
    if field is not None:
        times = np.ascontiguousarray(rows[field])
        if (times[1:] < times[:-1]).any():
            rows = rows.view(f"V{rows.itemsize}")[np.argsort(times, kind="stable")].view(rows.dtype)
    return rows


def newest_ns(kind: int, rows: Columns) -> int:
    """When the last row was made; 0 where there is none, or its kind does not say."""
    field = _TIME_FIELDS[kind]
    return int(rows[field][-1]) if field is not None and len(rows) else 0


def of_records(kind: int, records: Iterable[Any], texts: dict[int, str]) -> Columns:
    """Make rows of records of one kind: older sessions hold a line for each. `texts` gets new phases."""
    own = list(records)
    columns = np.full(len(own), -1, DTYPES[kind])
    known = {text: number for number, text in texts.items()}
    for field in names.ROW_FIELDS[kind]:
        if field not in TYPES[kind].__struct_fields__:
            continue
        values = [getattr(record, field) for record in own]
        if field in _NAMED:
            meanings = _NAMED[field]
            values = [meanings.index(value) if value in meanings else -1 for value in values]
        elif field == "phase":
            for text in dict.fromkeys(values):
                if text is not None and text not in known:
                    texts[known.setdefault(text, max(texts, default=-1) + 1)] = text
            values = [known.get(value, -1) for value in values]
        columns[field] = [-1 if value is None else value for value in values]
    return columns


def records_of(kind: int, rows: Columns, texts: dict[int, str]) -> list[Any]:
    """Make a record of each row."""
    of = TYPES[kind]
    columns: list[list[Any]] = []
    for field in of.__struct_fields__:
        column: list[Any] = rows[field].tolist()
        if field in _NAMED:
            meanings = _NAMED[field]
            column = [meanings[value] if 0 <= value < len(meanings) else "" for value in column]
        elif field == "phase":
            column = [texts.get(value) for value in column]
        elif field == "grad":
            column = [bool(value) for value in column]
        elif field not in _NUMBERS:
            column = [None if value == -1 else value for value in column]
        columns.append(column)
    return [of(*values) for values in zip(*columns, strict=True)]


def made_ns(record: Record, otherwise_ns: int) -> int:
    """When a record was made, of CLOCK_MONOTONIC."""
    time_of = TIMES.get(type(record))
    if time_of is not None:
        return int(time_of(record))
    return getattr(record, "mono_ns", 0) or otherwise_ns
