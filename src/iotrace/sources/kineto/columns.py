"""Batches of events, compiled or decoded, into the columns of a whole trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace import compiled
from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.begin_end import pair
from iotrace.sources.kineto.collectives import Collective, collective_of
from iotrace.sources.kineto.column_batch import (
    EVENT,
    FLOW_END,
    ColumnBatch,
    Metadata,
    Rows,
    Strings,
    Thread,
    number_or_text,
)
from iotrace.sources.kineto.compiled_columns import ColumnScan
from iotrace.sources.kineto.decoded_columns import DecodedColumns
from iotrace.sources.kineto.kinds import flow_category, is_collective_range
from iotrace.sources.kineto.trace import Events, Flows

_NUMBERED = ("thread", "category", "name")
_ADDED = ("external_id", "collective")
_COPIED = [name for name in Events.__struct_fields__ if name not in ("instant", *_NUMBERED, *_ADDED)]
_LASTED, _BEGIN, _END = map(ord, "XBE")
_NO_COLLECTIVE = -1


class _Joined:
    """Strings of both kinds of batches under one numbering; equal ones have one number."""

    def __init__(self, of_scan: list[Any], of_decoded: list[Any]) -> None:
        numbers: dict[Any, int] = {}
        both = [numbers.setdefault(value, len(numbers)) for value in (*of_scan, *of_decoded)]
        self.values = list(numbers)
        # Numbers of decoded batches are negative: -1 is the first one.
        scanned, decoded = both[: len(of_scan)], both[len(of_scan) :]
        self._table: npt.NDArray[Any] = np.array([*scanned, *decoded[::-1]], dtype=np.int32)
        self._is_same = not decoded and len(numbers) == len(scanned)

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The column in the joined numbering."""
        return column if self._is_same else self._table[column]


class Columns:
    """Collects the columns of one file. `scan` makes compiled batches; None where no library was compiled."""

    def __init__(self) -> None:
        self.scan = ColumnScan() if compiled.available() else None
        self.collectives: list[Collective] = []
        self.process_names: dict[int | str, str] = {}
        self.thread_names: dict[Thread, str] = {}
        self._decoded = DecodedColumns()
        self._scanned_strings = self.scan.strings if self.scan else Strings()
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        nothing = ColumnBatch(np.empty(0, EVENT), np.empty(0, FLOW_END), [], Strings(), lambda _: b"")
        self._add(nothing, np.copy)  # no column is without a part

    def add(self, found: ColumnBatch | EventBatch) -> None:
        """Take over what a batch holds."""
        if isinstance(found, EventBatch):
            self._add(self._decoded.batch(found), lambda numbers: -1 - numbers)
        else:
            self._add(found, np.copy)

    def _add(self, batch: ColumnBatch, signed: Callable[[Rows], Rows]) -> None:
        events, flow_ends = batch.events, batch.flow_ends
        for name in ("phase", *_COPIED):
            self._append(name, events[name].copy())
        for name in _NUMBERED:
            self._append(name, signed(events[name]))
        old = events["old_external_id"]
        self._append("external_id", np.where(old >= 0, old, events["external_id"]))
        self._append("collective", self._collectives_of(batch))
        for column, name in (("flow_time_ns", "time_ns"), ("flow", "id"), ("flow_phase", "phase")):
            self._append(column, flow_ends[name].copy())
        for column, name in (("flow_thread", "thread"), ("flow_category", "category")):
            self._append(column, signed(flow_ends[name]))
        for item in batch.metadata:
            self._add_metadata(item)

    def _collectives_of(self, batch: ColumnBatch) -> npt.NDArray[np.int32]:
        """Per event the index of its collective in `collectives`."""
        names, numbers, known = batch.strings.names, batch.events["name"], batch.strings.collective_ranges
        known += map(is_collective_range, names[len(known) :])
        is_range = np.array(known, dtype=np.bool_)[numbers]
        column = np.full(len(numbers), _NO_COLLECTIVE, dtype=np.int32)
        for row in np.flatnonzero(is_range | batch.events["is_collective"].view(np.bool_)).tolist():
            column[row] = len(self.collectives)
            self.collectives.append(collective_of(names[numbers[row]], batch.arguments(row)))
        return column

    def _add_metadata(self, item: Metadata) -> None:
        if item.name not in ("process_name", "thread_name") or item.pid is None:
            return
        name = _name_of(item.args)
        if not name:
            return
        if item.name == "process_name":
            self.process_names[number_or_text(item.pid)] = name
        elif item.tid is not None:
            self.thread_names[number_or_text(item.pid), number_or_text(item.tid)] = name

    def _append(self, name: str, part: npt.NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(part)

    def _whole(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate(self._parts.pop(name))

    def joined(self, field: str) -> _Joined:
        """The strings of a field of `Strings`, under one numbering."""
        return _Joined(getattr(self._scanned_strings, field), getattr(self._decoded.strings, field))

    def events(self, threads: _Joined, categories: _Joined, names: _Joined) -> tuple[Events, int]:
        """The events of all batches, and how many begins were left out as nothing ends them."""
        phase = self._whole("phase")
        numbered = {"thread": threads, "category": categories, "name": names}
        events = Events(
            instant=(phase != _LASTED) & (phase != _BEGIN),
            **{name: joined.numbers(self._whole(name)) for name, joined in numbered.items()},
            **{
                name: self._whole(name) for name in (*_COPIED, "external_id", "collective") if name != "phase"
            },
        )
        np.maximum(events.duration_ns, 0, out=events.duration_ns)
        events.duration_ns[events.instant] = 0
        halves = np.flatnonzero((phase == _BEGIN) | (phase == _END))
        return _paired(events, halves, phase[halves] == _END) if len(halves) else (events, 0)

    def flows(self, threads: _Joined) -> tuple[Flows, list[str]]:
        """The ends of flows, and their categories."""
        of_scan, of_decoded = (
            list(map(flow_category, strings.flow_categories))
            for strings in (self._scanned_strings, self._decoded.strings)
        )
        categories = _Joined(of_scan, of_decoded)
        return (
            Flows(
                time_ns=self._whole("flow_time_ns"),
                thread=threads.numbers(self._whole("flow_thread")),
                category=categories.numbers(self._whole("flow_category")),
                flow=self._whole("flow"),
                phase=self._whole("flow_phase"),
            ),
            categories.values,
        )


def _paired(
    events: Events, halves: npt.NDArray[np.int64], is_end: npt.NDArray[np.bool_]
) -> tuple[Events, int]:
    """Begins last until their ends, which go; a begin that nothing ends goes, too, and is counted."""
    begins, ends = pair(events.thread[halves].tolist(), events.start_ns[halves].tolist(), is_end.tolist())
    both = [(begin, end) for begin, end in zip(begins, ends, strict=True) if end is not None]
    begin_rows = halves[np.array([begin for begin, _ in both], dtype=np.int64)]
    end_rows = halves[np.array([end for _, end in both], dtype=np.int64)]
    events.duration_ns[begin_rows] = events.start_ns[end_rows] - events.start_ns[begin_rows]
    kept = np.ones(len(events), dtype=np.bool_)
    kept[halves] = False
    kept[begin_rows] = True
    return events.select(kept), len(begins) - len(both)


def _name_of(args: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(args) if bytes(args) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    name = found.get("name") if isinstance(found, dict) else None
    return str(name) if isinstance(name, str | int | float) and name else ""
