"""`scan.c`, where it was compiled when iotrace was installed: finds the events in a text."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace import compiled

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

_MOST_TRACKS = 4096
LARGEST_TEXT = 1 << 30  # offsets have 32 bits
_USUAL_EVENT_BYTES = 64  # at least; where there are more events, the next call finds them


class _Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "consumed", "status", "tracks")]


# New bytes that nobody else has yet: the scanner writes into them, as C extensions do, which saves a copy.
_bytes_to_fill = ctypes.pythonapi.PyBytes_FromStringAndSize
_bytes_to_fill.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_bytes_to_fill.restype = ctypes.py_object

Events = TypeVar("Events")


class Scanned(msgspec.Struct, Generic[Events]):
    """The whole events at the front of a text (None without any), and why there are no more.

    `status` is MORE (text has to come), END (of the array), ODD (the event at `consumed` is) or FULL (of what
    one call finds).
    """

    events: Events | None
    consumed: int
    status: int


Scan = Callable[[bytes], Scanned[Events]]


class FoundRows(msgspec.Struct):
    """Events without space between tokens, their rows, and by track the row that it was met in first."""

    text: bytes
    rows: Rows
    firsts: list[int]


def scan_rows(text: bytes) -> Scanned[FoundRows]:
    """Find the events at the front of `text`; `compiled.available()` has to be true."""
    if len(text) > LARGEST_TEXT:
        return Scanned(None, 0, ODD)
    capacity = len(text) // _USUAL_EVENT_BYTES + 1000
    rows = np.empty(capacity, ROW)
    firsts = np.empty(_MOST_TRACKS, np.int32)
    copied: bytes = _bytes_to_fill(None, len(text))
    found = _Found()
    compiled.loaded().iotrace_scan(
        text,
        ctypes.c_int64(len(text)),
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_int64(capacity),
        ctypes.c_void_p(firsts.ctypes.data),
        copied,
        ctypes.byref(found),
    )
    if not found.rows:
        return Scanned(None, found.consumed, found.status)
    events = FoundRows(copied, rows[: found.rows], firsts[: found.tracks].tolist())
    return Scanned(events, found.consumed, found.status)
