"""Batches of events, compiled or decoded, into the columns of a whole trace.

`columns.c`, where it was compiled when iotrace was installed: columns straight from the text of events.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace import compiled
from iotrace.sources.chrome.batch import EventBatch, pair
from iotrace.sources.chrome.json_text import CONTROLS
from iotrace.sources.chrome.scan import LARGEST_TEXT, ODD, Scanned
from iotrace.sources.kineto.collectives import Collective, parse_collective
from iotrace.sources.kineto.column_batch import (
    BETWEEN,
    EVENT,
    FLOW_END,
    TEXTS,
    ColumnBatch,
    Metadata,
    Numbered,
    Rows,
    Strings,
    Thread,
    decoded_columns,
    more_details,
    number_or_text,
)
from iotrace.sources.kineto.kinds import flow_category, has_values, is_collective_range, is_synchronisation
from iotrace.sources.kineto.trace import MEMORY, Events, Flows, Memory

_NAMES, _CATEGORIES, _THREADS, _FLOW_CATEGORIES, _DETAILS = range(5)
_NO_MEMORY = 4
_CAPACITY = 1 << 15

_decode_strings = msgspec.json.Decoder(list[str]).decode
_decode_identities = msgspec.json.Decoder(list[int | str | None]).decode
_decode_metadata = msgspec.json.Decoder(Metadata).decode


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("events", "flow_ends", "metadata", "consumed", "status")]


class ColumnScan:
    """Scans texts of one trace; equal strings have equal numbers in all of them."""

    def __init__(self) -> None:
        self.strings = Strings()
        self._library = compiled.loaded()
        self._library.iotrace_tables.restype = ctypes.c_void_p
        self._library.iotrace_table.restype = ctypes.c_int64
        self._tables = ctypes.c_void_p(self._library.iotrace_tables())
        if not self._tables:
            raise MemoryError
        self._events = np.empty(_CAPACITY, EVENT)
        self._flow_ends = np.empty(_CAPACITY, FLOW_END)
        self._metadata = np.empty((_CAPACITY, 2), np.int32)

    def __del__(self) -> None:
        if getattr(self, "_tables", None):
            self._library.iotrace_tables_free(self._tables)

    def __call__(self, text: bytes) -> Scanned[ColumnBatch]:
        """Make columns of the events at the front of `text`."""
        if len(text) > LARGEST_TEXT:
            return Scanned(None, 0, ODD)
        counts = _Counts()
        self._library.iotrace_columns(
            self._tables,
            text,
            ctypes.c_int64(len(text)),
            ctypes.c_int64(_CAPACITY),
            _pointer(self._events),
            _pointer(self._flow_ends),
            _pointer(self._metadata),
            ctypes.byref(counts),
        )
        if counts.status == _NO_MEMORY:
            raise MemoryError
        self._read_tables()
        events = self._events[: counts.events]
        bounds = self._metadata[: counts.metadata].tolist()

        def arguments(row: int) -> bytes:
            return text[events["arguments"][row] : events["arguments_stop"][row]].translate(CONTROLS)

        batch = ColumnBatch(
            events,
            self._flow_ends[: counts.flow_ends],
            [_decode_metadata(text[begin:end].translate(CONTROLS)) for begin, end in bounds],
            self.strings,
            arguments,
        )
        has_any = counts.events or counts.flow_ends or counts.metadata
        return Scanned(batch if has_any else None, counts.consumed, counts.status)

    def _read_tables(self) -> None:
        strings = self.strings
        for table, known in (
            (_NAMES, strings.names),
            (_CATEGORIES, strings.categories),
            (_FLOW_CATEGORIES, strings.flow_categories),
        ):
            tokens = self._tokens(table, len(known))
            if tokens:
                known += _decode_strings(_array(tokens, b'""'))
        strings.details += self._tokens(_DETAILS, len(strings.details))
        strings.threads += map(_thread, self._tokens(_THREADS, len(strings.threads)))

    def _tokens(self, table: int, known: int) -> list[bytes]:
        """The strings of a table as they are written, after the first `known` ones."""
        at, stops = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_int64)()
        count = self._library.iotrace_table(self._tables, table, ctypes.byref(at), ctypes.byref(stops))
        if count == known:
            return []
        begin = stops[known - 1] if known else 0
        ends = [stop - begin for stop in stops[known:count]]
        text = ctypes.string_at((at.value or 0) + begin, ends[-1])
        return [text[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def _pointer(array: Rows) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


def _array(tokens: list[bytes], absent: bytes) -> bytes:
    return b"[" + b",".join(token or absent for token in tokens).translate(CONTROLS) + b"]"


def _thread(token: bytes) -> Thread:
    pid, tid = _decode_identities(_array(token.split(BETWEEN), b"null"))
    return number_or_text(pid), number_or_text(tid)


# Columns of numbers, and what they mean in `Strings`.
_NUMBERED = {"thread": "threads", "category": "categories", "name": "names", "details": "details"}
_FLOWS_NUMBERED = (
    ("flow_thread", "thread", "threads"),
    ("flow_category", "category", "flow_categories"),
)
# Columns of `Memory`, and the fields of `EVENT` that they are made of.
_MEMORY = {"time_ns": "start_ns", "thread": "thread", "bytes": "memory_bytes"} | {
    name: name for name in ("allocated", "reserved", "device_type", "device_id", "address")
}
_COLUMNS = [name for name in Events.__struct_fields__ if name != "instant"]
_COPIED = ("phase", "start_ns", "duration_ns")
_IDS = ("correlation", "device", "sequence", "forward_thread", "bytes")
_LASTED, _BEGIN, _END = map(ord, "XBE")
_NO_COLLECTIVE = -1
_INT32 = np.iinfo(np.int32)


class Columns:
    """Collects the columns of one file. `scan` makes compiled batches; None where no library was compiled.

    Numbers in the columns are those of `strings`, whichever kind of batch they came from.
    """

    def __init__(self) -> None:
        self.scan = ColumnScan() if compiled.available() else None
        self.strings = Strings()
        self.collectives: list[Collective] = []
        self.process_names: dict[int | str, str] = {}
        self.thread_names: dict[Thread, str] = {}
        # By field of `Strings` the numbers here of the strings of `scan`, by their numbers there.
        self._numbers: dict[str, array[int]] = defaultdict(lambda: array("i"))
        self._is_collective_range: list[bool] = []  # by name
        self._has_values: list[bool] = []  # by name
        self._is_synchronisation: list[bool] = []  # by category
        self._parts: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
        nothing = ColumnBatch(np.empty(0, EVENT), np.empty(0, FLOW_END), [], self.strings, lambda _: b"")
        self._add(nothing)  # no column is without a part

    def add(self, batch: ColumnBatch | EventBatch) -> None:
        """Take over what a batch holds."""
        self._add(decoded_columns(batch, self.strings) if isinstance(batch, EventBatch) else batch)

    def _add(self, batch: ColumnBatch) -> None:
        events, flow_ends, parts = batch.events, batch.flow_ends, self._parts
        for name in _COPIED:
            parts[name].append(events[name].copy())
        for name in _IDS:
            parts[name].append(_narrow(events[name]))
        for name, field in _NUMBERED.items():
            parts[name].append(self._numbered(field, events[name], batch.strings))
        for name, other in (("external_id", "old_external_id"), ("stream", "sycl_queue")):
            parts[name].append(_narrow(np.where(events[other] >= 0, events[other], events[name])))
        self._add_details(batch, parts["name"][-1], parts["category"][-1], parts["details"][-1])
        parts["collective"].append(self._number_collectives(batch, parts["name"][-1]))
        self._add_memory(batch, parts["name"][-1], parts["thread"][-1])
        for column, name in (("flow_time_ns", "time_ns"), ("flow", "id"), ("flow_phase", "phase")):
            parts[column].append(flow_ends[name].copy())
        for column, name, field in _FLOWS_NUMBERED:
            parts[column].append(self._numbered(field, flow_ends[name], batch.strings))
        for item in batch.metadata:
            self._add_metadata(item)

    def _numbered(self, field: str, column: Rows, theirs: Strings) -> Rows:
        """Bring a column of numbers in `theirs` to those of `strings`."""
        if theirs is self.strings:
            return np.copy(column)
        numbers, ours = self._numbers[field], getattr(self.strings, field)
        numbers.extend(map(ours.number, getattr(theirs, field)[len(numbers) :]))
        return np.take(np.array(numbers, dtype=np.int32), column)

    def _number_collectives(self, batch: ColumnBatch, numbers: Rows) -> npt.NDArray[np.int32]:
        """Per event the index of its collective in `collectives`; `numbers` are those of their names."""
        names, known = self.strings.names, self._is_collective_range
        known += map(is_collective_range, names[len(known) :])
        is_range = np.array(known, dtype=np.bool_)[numbers]
        column = np.full(len(numbers), _NO_COLLECTIVE, dtype=np.int32)
        for row in np.flatnonzero(is_range | batch.events["is_collective"].view(np.bool_)).tolist():
            column[row] = len(self.collectives)
            self.collectives.append(parse_collective(names[numbers[row]], batch.arguments(row)))
        return column

    def _add_details(self, batch: ColumnBatch, names: Rows, categories: Rows, details: Rows) -> None:
        """Keep more of the arguments of some events: convolutions, attention, synchronisation."""
        for known, numbered, has in (
            (self._has_values, self.strings.names, has_values),
            (self._is_synchronisation, self.strings.categories, is_synchronisation),
        ):
            known += map(has, numbered[len(known) :])
        kept = np.array(self._has_values, dtype=np.bool_)[names]
        kept |= np.array(self._is_synchronisation, dtype=np.bool_)[categories]
        for row in np.flatnonzero(kept).tolist():
            more = more_details(batch.arguments(row))
            if more is not None:
                text = self.strings.details[details[row]] or BETWEEN * (len(TEXTS) - 1)
                details[row] = self.strings.details.number(text + BETWEEN + more)

    def _add_memory(self, batch: ColumnBatch, names: Rows, threads: Rows) -> None:
        number = self.strings.names.index(MEMORY) if MEMORY in self.strings.names else -1
        rows = np.flatnonzero(names == number)
        for name in _MEMORY:
            column = threads if name == "thread" else batch.events[_MEMORY[name]]
            self._parts[f"memory_{name}"].append(np.take(column, rows))

    def _add_metadata(self, item: Metadata) -> None:
        if item.name not in ("process_name", "thread_name") or item.pid is None:
            return
        name = _read_name(item.args)
        if not name:
            return
        if item.name == "process_name":
            self.process_names[number_or_text(item.pid)] = name
        elif item.tid is not None:
            self.thread_names[number_or_text(item.pid), number_or_text(item.tid)] = name

    def _whole(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate(self._parts.pop(name))

    def events(self) -> tuple[Events, int]:
        """The events of all batches, and how many begins were left out as nothing ends them."""
        phase = self._whole("phase")
        columns = {name: self._whole(name) for name in _COLUMNS}
        events = Events(instant=(phase != _LASTED) & (phase != _BEGIN), **columns)
        np.maximum(events.duration_ns, 0, out=events.duration_ns)
        events.duration_ns[events.instant] = 0
        halves = np.flatnonzero((phase == _BEGIN) | (phase == _END))
        return _paired(events, halves, phase[halves] == _END) if len(halves) else (events, 0)

    def memory(self) -> Memory:
        """What was given and freed of memory."""
        return Memory(**{name: self._whole(f"memory_{name}") for name in _MEMORY})

    def flows(self) -> tuple[Flows, list[str]]:
        """The ends of flows, and their categories."""
        categories = Numbered()
        numbers = [categories.number(flow_category(name)) for name in self.strings.flow_categories]
        flows = Flows(
            time_ns=self._whole("flow_time_ns"),
            thread=self._whole("flow_thread"),
            category=np.array(numbers, dtype=np.int32)[self._whole("flow_category")],
            flow=self._whole("flow"),
            phase=self._whole("flow_phase"),
        )
        return flows, list(categories)


def _narrow(column: Rows) -> Rows:
    """Copy a column into half the memory where its numbers fit; parts of both widths join as wide ones."""
    fits = not len(column) or (_INT32.min <= column.min() and column.max() <= _INT32.max)
    return column.astype(np.int32 if fits else np.int64)


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


def _read_name(args: msgspec.Raw) -> str:
    try:
        decoded = msgspec.json.decode(args) if bytes(args) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    name = decoded.get("name") if isinstance(decoded, dict) else None
    return str(name) if isinstance(name, str | int | float) and name else ""
