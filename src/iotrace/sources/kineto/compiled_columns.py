"""`columns.c`, where it was compiled when iotrace was installed: columns straight from the text of events."""

from __future__ import annotations

import ctypes
from typing import Any

import msgspec
import numpy as np

from iotrace import compiled
from iotrace.sources.chrome.compiled_scan import LARGEST_TEXT, ODD, Scanned
from iotrace.sources.chrome.json_text import CONTROLS
from iotrace.sources.kineto.column_batch import (
    BETWEEN,
    EVENT,
    FLOW_END,
    ColumnBatch,
    Metadata,
    Rows,
    Strings,
    Thread,
    number_or_text,
)

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
        """The strings of a table as they are written, behind the first `known` ones."""
        at, stops = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_int64)()
        count = self._library.iotrace_table(self._tables, table, ctypes.byref(at), ctypes.byref(stops))
        if count == known:
            return []
        begin = stops[known - 1] if known else 0
        ends = [stop - begin for stop in stops[known:count]]
        found = ctypes.string_at((at.value or 0) + begin, ends[-1])
        return [found[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def _pointer(array: Rows) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


def _array(tokens: list[bytes], absent: bytes) -> bytes:
    return b"[" + b",".join(token or absent for token in tokens).translate(CONTROLS) + b"]"


def _thread(token: bytes) -> Thread:
    pid, tid = _decode_identities(_array(token.split(BETWEEN), b"null"))
    return number_or_text(pid), number_or_text(tid)
