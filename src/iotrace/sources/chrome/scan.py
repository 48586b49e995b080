"""Batches of a piece of trace JSON: `scan.c` finds where the keys of events lie, and they stay text.

Where it was not compiled when iotrace was installed, msgspec decodes sound pieces at once.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from iotrace import compiled
from iotrace.sources.chrome.batch import (
    FARTHEST_NS,
    Event,
    EventBatch,
    Identity,
    Times,
    carried,
    column,
    fits_doubles,
    rests_ps,
    us_to_ns,
)
from iotrace.sources.chrome.json_text import CONTROLS
from iotrace.sources.chrome.lenient_decoder import make_event, objects, plain

_EXPONENT = re.compile(rb"[eE]\+?\d{3,}\s*[,}\]]")
_NUMBER_BEFORE = re.compile(rb"[:,\[ ]-?[\d.]+$")
_FARTHEST_US = 2.0**52

# An event whose time stays text.
_ExactEvent = msgspec.defstruct(
    "_ExactEvent",
    [
        (item.name, msgspec.Raw | msgspec.UnsetType if item.name == "ts" else item.type, item.default)
        for item in msgspec.structs.fields(Event)
    ],
    forbid_unknown_fields=True,
    gc=False,
    kw_only=True,
)
_decoder = msgspec.json.Decoder(list[Event])
_exact_decoder: Any = msgspec.json.Decoder(list[_ExactEvent])  # type: ignore[valid-type]


def decode(piece: bytes) -> EventBatch | None:
    """The events of whole, sound objects; None where the tolerant way has to be taken."""
    if _has_large_exponent(piece):
        return None
    document = b"[" + piece + b"]"
    try:
        events = _decoder.decode(document)
        # Only metadata may lack a time.
        missing = 0 if all(event.ph == "M" for event in events if event.ts is msgspec.UNSET) else None
        starts = _nanoseconds([event.ts for event in events], missing)
        if starts is None:  # us since 1970 with decimals: no double holds them
            events = _exact_decoder.decode(document)
            starts = _nanoseconds_of_text([event.ts for event in events], missing)
        durations = _nanoseconds([event.dur for event in events], 0)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    if starts is None or durations is None:
        return None
    if (np.abs(starts) >= FARTHEST_NS).any() or (np.abs(durations) >= FARTHEST_NS).any():
        return None
    durations += _carried(events, starts + durations)
    return EventBatch(events, starts, durations, may_bind=b'"id2"' in piece or b'"bind_id"' in piece)


def _carried(events: list[Any], ends: Times) -> Any:
    """See `event.carried`."""
    starts = [event.ts if isinstance(event.ts, float) else _double(event.ts) for event in events]
    starts_ps = rests_ps(np.array(starts, np.float64))
    if not starts_ps.any():
        return 0
    durations = [event.dur if isinstance(event.dur, float) else 0 for event in events]
    has_duration = np.array([event.dur is not msgspec.UNSET for event in events], np.bool_)
    return np.where(has_duration, carried(ends, starts_ps, rests_ps(np.array(durations, np.float64))), 0)


def _double(time: Any) -> float:
    """A time that stayed text; 0 for integers, which rounding does not change."""
    return float(bytes(time)) if isinstance(time, msgspec.Raw) else 0.0


def _filled(values: list[Any], missing: int | None) -> list[Any]:
    if msgspec.UNSET not in values:
        return values
    if missing is None:
        raise ValueError("an event without a time")
    return [missing if value is msgspec.UNSET else value for value in values]


def _nanoseconds(values: list[Any], missing: int | None) -> Times | None:
    """Times in us as ns; None where doubles lost digits."""
    values = _filled(values, missing)
    doubles = np.array(values, dtype=np.float64)
    if fits_doubles(doubles):
        return np.rint(doubles * 1000).astype(np.int64)
    if np.abs(doubles).max() < _FARTHEST_US and set(map(type, values)) == {int}:
        return np.array(values, dtype=np.int64) * 1000
    return None


def _nanoseconds_of_text(values: list[Any], missing: int | None) -> Times:
    """Times in us, as their digits, in ns."""
    digits = [bytes(value) if isinstance(value, msgspec.Raw) else b"0" for value in _filled(values, missing)]
    times = []
    for text in digits:
        whole, _, decimals = text.partition(b".")
        if len(decimals) <= 3 and text.replace(b".", b"").isdigit():
            times.append(int(whole) * 1000 + int(decimals.ljust(3, b"0")))
        else:
            times.append(us_to_ns(text.decode()))
    return np.array(times, dtype=np.int64)


def _has_large_exponent(piece: bytes) -> bool:
    """Whether a number may be too large for a double, which Perfetto refuses together with its file."""
    letters = np.frombuffer(piece, np.uint8)
    exponents = np.flatnonzero((letters[:-1] == 0x65) | (letters[:-1] == 0x45))
    after = letters[exponents + 1]
    digits = (after - 0x30 < 10) | (after == 0x2B)  # unsigned: what is below the digits wraps around
    return any(
        _EXPONENT.match(piece, at) and _NUMBER_BEFORE.search(piece, max(0, at - 64), at)
        for at in exponents[digits].tolist()
    )


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
    result = _Found()
    compiled.loaded().iotrace_scan(
        text,
        ctypes.c_int64(len(text)),
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_int64(capacity),
        ctypes.c_void_p(firsts.ctypes.data),
        copied,
        ctypes.byref(result),
    )
    if not result.rows:
        return Scanned(None, result.consumed, result.status)
    events = FoundRows(copied, rows[: result.rows], firsts[: result.tracks].tolist())
    return Scanned(events, result.consumed, result.status)


_INDEX = {key: index for index, key in enumerate(KEYS)}
_BINDING = [_INDEX["id2"], _INDEX["bind_id"]]


def _field(name: str) -> Any:
    """A field of a batch's rows, in memory of its own."""
    return column(lambda batch: np.ascontiguousarray(batch.rows[name]))


def _families(batch: TextBatch) -> Any:
    hashes = np.ascontiguousarray(batch.rows["family"])
    families = np.zeros(len(hashes), np.int64)
    rows = np.flatnonzero(hashes)
    while len(rows):  # families are few
        of_one = hashes[rows] == hashes[rows[0]]
        # The same numbers as for events that had to be decoded.
        families[rows[of_one]] = hash((batch.value(rows[0], "cat"), batch.value(rows[0], "name")))
        rows = rows[~of_one]
    return families


def _to_next(batch: TextBatch) -> Any:
    to_next = batch.phases == ord("f")
    rows = np.flatnonzero(to_next)
    if len(rows):
        values, stops = (batch.rows[side][rows, _INDEX["bp"]] for side in ("value", "stop"))
        letters = np.frombuffer(batch.text, np.uint8)[values + 1]
        to_next[rows] = (stops - values != 3) | (letters != ord("e"))
    return to_next


class TextBatch(msgspec.Struct, dict=True):
    """Rows of `text`."""

    text: bytes
    rows: Rows
    tracks: list[tuple[Identity, Identity]]
    may_bind: bool

    start_ns = _field("start_ns")
    duration_ns = _field("duration_ns")
    phases = _field("phase")
    scopes = _field("scope")
    track = _field("track")
    ids = _field("id")
    has_duration = column(lambda batch: batch.rows["has_duration"].astype(np.bool_))
    families = column(_families)
    to_next = column(_to_next)

    def __len__(self) -> int:
        return len(self.rows)

    def value(self, row: int, key: str) -> Any:
        index = _INDEX[key]
        start, stop = int(self.rows["value"][row, index]), int(self.rows["stop"][row, index])
        if not stop:
            return UNSET
        # Raw control characters pass the scanner, as they do in Perfetto.
        return plain(json.loads(self.text[start:stop].decode(errors="replace"), strict=False))

    def select(self, wanted: Any) -> TextBatch:
        return TextBatch(self.text, self.rows[wanted], self.tracks, self.may_bind)

    def decoded(self, first: int, last: int) -> EventBatch:
        """Some of the events, from row `first` up to `last`, decoded."""
        bounds = zip(
            self.rows["begin"][first:last].tolist(), self.rows["end"][first:last].tolist(), strict=True
        )
        piece = b",".join([self.text[begin:end] for begin, end in bounds]).translate(CONTROLS)
        batch = decode(piece)
        if batch is not None:
            return batch
        events = (make_event(item.value) for item in objects(piece.decode(), 0, final=True) if item.value)
        return EventBatch.of(known[:4] for known in events)


def text_scan() -> Scan[TextBatch] | None:
    """Return the scan that keeps events as text; None where no library was compiled."""
    return _scan if compiled.available() else None


def _scan(text: bytes) -> Scanned[TextBatch]:
    scanned = scan_rows(text)
    if scanned.events is None:
        return Scanned(None, scanned.consumed, scanned.status)
    rows = scanned.events.rows
    may_bind = bool(rows["others"].any() and rows["stop"][:, _BINDING].any())
    batch = TextBatch(scanned.events.text, rows, [], may_bind)
    batch.tracks = [(batch.value(row, "pid"), batch.value(row, "tid")) for row in scanned.events.firsts]
    return Scanned(batch, scanned.consumed, scanned.status)
