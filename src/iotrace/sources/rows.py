"""What comes with every batch or step: agents write rows of integers, which are read as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.sources.records import Idle, Record, Rows, Text, Tick

Columns = npt.NDArray[np.void]  # of one of `DTYPES`

DTYPES = tuple(np.dtype([(field, "<i8") for field in fields]) for fields in names.ROW_FIELDS)
# By kind, the field that orders rows: when a row was made, mostly.
TIME_FIELDS = ("delivered_ns", "prepared_ns", "mono_ns", "end_ns", None, "start_ns", "mono_ns", "end_ns")
_MOST = 2**62  # as of all numbers in records: what a damaged line holds shall not overflow


def divided(
    read: Iterable[Record], texts: dict[int, str], now_ns: int = 0
) -> tuple[list[Record], dict[int, Columns]]:
    """Divide what was read into rows, by kind, and other records, in the order of their making.

    `texts` gets the texts among them. A record that does not say when it was made follows those before it;
    the first ones were made at `now_ns`.
    """
    parts: dict[int, list[Columns]] = defaultdict(list)
    timed: list[tuple[int, Record]] = []
    for record in read:
        if isinstance(record, Rows):
            rows = columns_of(record)
            if len(rows):
                parts[record.kind].append(rows)
                now_ns = max(now_ns, newest_ns(record.kind, rows))
        else:
            timed.append((_made_ns(record) or now_ns, record))
            now_ns = max(now_ns, timed[-1][0])
            if isinstance(record, Idle):
                record.mono_ns = timed[-1][0]
            elif isinstance(record, Text):
                texts[record.id] = record.text
    timed.sort(key=lambda each: each[0])
    return [record for _, record in timed], {kind: joined(kind, own) for kind, own in parts.items()}


def _made_ns(record: Record) -> int:
    return record.clock[0] if isinstance(record, Tick) else getattr(record, "mono_ns", 0)


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
    field = TIME_FIELDS[kind]
    if field is not None:
        times = np.ascontiguousarray(rows[field])
        if (times[1:] < times[:-1]).any():
            rows = rows.view(f"V{rows.itemsize}")[np.argsort(times, kind="stable")].view(rows.dtype)
    return rows


def newest_ns(kind: int, rows: Columns) -> int:
    """When the last row was made; 0 where there is none, or its kind does not say."""
    field = TIME_FIELDS[kind]
    return int(rows[field][-1]) if field is not None and len(rows) else 0
