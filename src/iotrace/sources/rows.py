"""Records that an agent wrote as rows of integers, as one of each kind comes with every batch or step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    PhaseOnDevice,
    Produced,
    Record,
    Round,
    Rows,
    StepMark,
    Text,
    Tick,
)

Columns = npt.NDArray[np.int64]

# When a record was made, by its type: those that come with each batch, and those that stand between them.
TIMES: dict[type, Callable[[Any], int]] = {
    BatchRecord: attrgetter("delivered_ns"),
    Round: attrgetter("mono_ns"),
    Blocked: attrgetter("end_ns"),
    Produced: attrgetter("prepared_ns"),
    IteratorEnd: attrgetter("mono_ns"),
    StepMark: attrgetter("mono_ns"),
    Tick: lambda record: int(record.clock[0]),
}
_KINDS: dict[int, type[Record]] = {
    names.BATCH_ROW: BatchRecord,
    names.PRODUCED_ROW: Produced,
    names.ROUND_ROW: Round,
    names.BLOCKED_ROW: Blocked,
    names.EXPOSED_ROW: Exposed,
    names.DEVICE_PHASE_ROW: PhaseOnDevice,
    names.MARK_ROW: StepMark,
}
_MOST = 2**62  # as of all numbers in records: what a damaged line holds shall not overflow
_NAMED = {"outcome": names.OUTCOMES, "what": names.ROUNDS, "call": names.CALLS}


def expand(records: Sequence[Record], texts: dict[int, str]) -> list[Record]:
    """Put a record in the place of each row, in the order in which they were made.

    `texts` are the process's so far, those of `records` apart.
    """
    if not any(type(record) is Rows for record in records):
        return list(records)
    texts = {**texts, **{record.id: record.text for record in records if isinstance(record, Text)}}
    timed: list[tuple[int, Record]] = []
    now_ns = 0
    for record in records:
        own = _records_of(record, texts) if isinstance(record, Rows) else [record]
        timed += [(_made_ns(one, now_ns), one) for one in own]
        now_ns = max(now_ns, *(time_ns for time_ns, _ in timed[-len(own) :])) if own else now_ns
    timed.sort(key=lambda each: each[0])
    return [record for _, record in timed]


def _made_ns(record: Record, otherwise_ns: int) -> int:
    time_of = TIMES.get(type(record))
    if time_of is not None:
        return time_of(record)
    return getattr(record, "mono_ns", 0) or otherwise_ns


def columns_of(rows: Rows) -> Columns:
    """The rows, of shape (rows, fields of their kind); none where the record is damaged."""
    if rows.kind not in _KINDS:
        return np.empty((0, 0), np.int64)
    width = 1 + len(names.ROW_FIELDS[rows.kind])
    whole = len(rows.rows) // (8 * width) * width
    found: Columns = np.frombuffer(rows.rows, "<i8", whole).reshape(-1, width)[:, 1:]
    possible: Columns = found[(np.abs(found) <= _MOST).all(axis=1)]
    return possible


def _records_of(rows: Rows, texts: dict[int, str]) -> list[Record]:
    found = columns_of(rows)
    if not len(found):
        return []
    kind, fields = _KINDS[rows.kind], names.ROW_FIELDS[rows.kind]
    known = {field: [*column] for field, column in zip(fields, found.T.tolist(), strict=True)}
    columns = []
    for field in kind.__struct_fields__:
        column: list[Any] = known[field]
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
    return [kind(*values) for values in zip(*columns, strict=True)]


# Fields that are always known, or say themselves what -1 means.
_NUMBERS = frozenset(
    (
        *("iterator", "epoch", "generation", "index", "tid", "wait_start_ns", "delivered_ns", "ahead"),
        *("backward_count", "taken_ns", "prepared_ns", "number", "mono_ns", "cpu_ns", "run_delay_ns"),
        *("start_ns", "end_ns", "exposed_ns", "device_ns"),
    )
)
