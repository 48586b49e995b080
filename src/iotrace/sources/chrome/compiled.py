"""The library of `scan.c`, `lanes.c` and `native.c`, where it was compiled when iotrace was installed.

The calls of `native.c` are in `compiled_native`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = "_compiled.so"
KEYS = ("ph", "pid", "tid", "ts", "dur", "id", "bp", "id2", "bind_id", "cat", "name", "args", "s")
MORE, END, ODD, FULL = range(4)
ROW = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("id", "<i8"),
        ("begin", "<i4"),
        ("end", "<i4"),
        ("track", "<i4"),
        ("family", "<i4"),
        ("phase", "u1"),
        ("scope", "u1"),
        ("has_duration", "u1"),
        ("others", "u1"),
        ("key", "<i4", len(KEYS)),
        ("value", "<i4", len(KEYS)),
        ("stop", "<i4", len(KEYS)),
    ],
    align=True,
)
Rows = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

_INTERFACE = 2  # of `scan.c`: a library that was compiled before an update is not used
_MOST_TRACKS = 4096
_LARGEST_TEXT = 1 << 30  # offsets have 32 bits
_USUAL_EVENT_BYTES = 64  # at least; where there are more events, the next call finds them
_REWRITTEN_BYTES = 192
_library: Any = None


class _Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "consumed", "status", "tracks")]


@dataclass
class Scanned:
    """The whole events at the front of a text, and why there are no more: `MORE` has to come, the array's
    `END`, an `ODD` event at `consumed`, or that one call's rows are `FULL`."""

    rows: Rows
    consumed: int
    status: int
    firsts: list[int]  # by track: the row that it was met in first


def available() -> bool:
    """Whether the library was compiled of these sources' interface and can be loaded."""
    global _library
    if _library is None:
        try:
            _library = ctypes.CDLL(str(Path(__file__).parents[2] / LIBRARY))
            _library.iotrace_interface.restype = ctypes.c_int64
            if _library.iotrace_interface() != _INTERFACE:
                raise AttributeError("another version's library")
            _library.iotrace_scan.restype = None
            _library.iotrace_write.restype = ctypes.c_int64
            for name in ("iotrace_place", "iotrace_bodies", "iotrace_packets"):
                getattr(_library, name).restype = ctypes.c_int64
            for name in ("iotrace_interned", "iotrace_thread", "iotrace_string"):
                getattr(_library, name).restype = ctypes.c_void_p
        except (OSError, AttributeError):
            _library = False
    return bool(_library)


def library() -> Any:
    """The library; `available()` has to be true."""
    return _library if available() else None


def scan(text: bytes) -> Scanned:
    """Find the events at the front of `text`; `available()` has to be true."""
    if len(text) > _LARGEST_TEXT:
        return Scanned(np.empty(0, ROW), 0, ODD, [])
    capacity = len(text) // _USUAL_EVENT_BYTES + 1000
    rows = np.empty(capacity, ROW)
    firsts = np.empty(_MOST_TRACKS, np.int32)
    found = _Found()
    _library.iotrace_scan(
        text,
        ctypes.c_int64(len(text)),
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_int64(capacity),
        ctypes.c_void_p(firsts.ctypes.data),
        ctypes.byref(found),
    )
    return Scanned(rows[: found.rows], found.consumed, found.status, firsts[: found.tracks].tolist())


def write(
    text: bytes,
    rows: Rows,
    start_ns: Int64s,
    duration_ns: Int64s,
    pids: Int64s,
    tids: Int64s,
    ids: Int64s,
    edits: list[tuple[int, str, bytes]],
) -> memoryview:
    """A line for each row of `text`, each with a comma at its end.

    `duration_ns` and `ids` are negative where they stay as they are. `edits` give a row's `id2` or `bind_id`
    another value, in order of rows.
    """
    values = b"".join(value for _, _, value in edits)
    places = []
    at = 0
    for row, key, value in edits:
        places.append((row, KEYS.index(key), at, at + len(value)))
        at += len(value)
    edit_table = np.array(places, np.int64).reshape(-1, 4)
    rows = np.ascontiguousarray(rows)
    columns = [np.ascontiguousarray(column, np.int64) for column in (start_ns, duration_ns, pids, tids, ids)]
    out = np.empty(int((rows["end"] - rows["begin"]).sum()) + at + _REWRITTEN_BYTES * len(rows), np.uint8)
    size = _library.iotrace_write(
        text,
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_int64(len(rows)),
        *(ctypes.c_void_p(column.ctypes.data) for column in columns),
        ctypes.c_void_p(edit_table.ctypes.data),
        ctypes.c_int64(len(edit_table)),
        values,
        ctypes.c_void_p(out.ctypes.data),
    )
    return memoryview(out.data)[:size]


class Lanes(ctypes.Structure):
    """The open slices of one thread's lanes: `Lanes` of lanes.c, with its room for lanes and levels."""

    _fields_ = [
        ("_count", ctypes.c_int64),
        ("_depth", ctypes.c_int64 * 64),
        ("_starts", ctypes.c_int64 * 512 * 64),
        ("_ends", ctypes.c_int64 * 512 * 64),
        ("_begun", ctypes.c_int64),
        ("_begins", ctypes.c_int64 * 512),
    ]

    def place(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The lane of each row as in `lanes`; of fewer rows where there is no room for more."""
        rows = np.ascontiguousarray(rows)
        placed = np.empty(len(rows), np.int32)
        count = _library.iotrace_place(
            ctypes.byref(self),
            ctypes.c_void_p(rows.ctypes.data),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(placed.ctypes.data),
        )
        return placed[:count]

    def open(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Starts and ends of the open slices by lane, the outermost first; starts of begin events."""
        lanes = range(self._count)
        return (
            [self._starts[lane][: self._depth[lane]] for lane in lanes],
            [self._ends[lane][: self._depth[lane]] for lane in lanes],
            self._begins[: self._begun],
        )
