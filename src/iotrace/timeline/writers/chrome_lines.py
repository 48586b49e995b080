"""Batches of events as lines of Chrome's trace JSON."""

from __future__ import annotations

import ctypes
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from iotrace import compiled
from iotrace.sources.chrome.batch import Batch, EventBatch
from iotrace.sources.chrome.compiled_scan import KEYS
from iotrace.sources.chrome.event import Event, Times, encode_number
from iotrace.sources.chrome.raw_batch import TextBatch
from iotrace.timeline.writers.columns import Columns, renumber

_EXACT_NS = 1 << 53
Sizes = npt.NDArray[np.int32]  # of lines, in bytes with their newlines

_REWRITTEN_BYTES = 224  # of a line, at most, beside what its event holds
_encoder = msgspec.json.Encoder(decimal_format="number")


def lines_of(batch: Batch, columns: Columns) -> tuple[bytes | memoryview, Sizes]:
    """Return the events with what the columns say as lines that end in a comma, and the lines' sizes."""
    if isinstance(batch, TextBatch):
        return _write_rows(batch, columns)
    assert isinstance(batch, EventBatch)
    renumber(batch, columns)
    data = lines_at(batch, columns.relative_ns, columns.duration_ns)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return data, np.diff(ends, prepend=-1).astype(np.int32)


def _write_rows(batch: TextBatch, columns: Columns) -> tuple[memoryview, Sizes]:
    """A line for each row, each with a comma at its end.

    Durations and ids are negative where they stay as they are. Edits give a row's `id2` or `bind_id` another
    value, in order of rows.
    """
    text, rows = batch.text, np.ascontiguousarray(batch.rows)
    values = b"".join(value for _, _, value in columns.edits)
    pieces = []
    at = 0
    for row, key, value in columns.edits:
        pieces.append((row, KEYS.index(key), at, at + len(value)))
        at += len(value)
    edit_table = np.array(pieces, np.int64).reshape(-1, 4)
    new = (columns.relative_ns, columns.duration_ns, columns.pids, columns.tids, columns.ids)
    written = [np.ascontiguousarray(column, np.int64) for column in new]
    out = np.empty(len(text) + at + _REWRITTEN_BYTES * len(rows), np.uint8)
    sizes = np.empty(len(rows), np.int32)
    write = compiled.loaded().iotrace_write
    write.restype = ctypes.c_int64
    size: int = write(
        text,
        ctypes.c_void_p(rows.ctypes.data),
        ctypes.c_int64(len(rows)),
        *(ctypes.c_void_p(column.ctypes.data) for column in written),
        ctypes.c_void_p(edit_table.ctypes.data),
        ctypes.c_int64(len(edit_table)),
        values,
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_void_p(sizes.ctypes.data),
    )
    return memoryview(out.data)[:size], sizes


def lines_at(batch: EventBatch, start_ns: Times, duration_ns: Times) -> bytes:
    """Return the events with these times as lines; those of a negative duration keep theirs."""
    for event, start_us, duration_us, length_ns in zip(
        batch.events,
        _microseconds(start_ns),
        _microseconds(duration_ns),
        duration_ns.tolist(),
        strict=True,
    ):
        event.ts = start_us
        if length_ns >= 0:
            event.dur = duration_us
    try:
        data = _encoder.encode_lines(batch.events).replace(b"\n", b",\n")
        return _with(data, batch.extra) if batch.extra else data
    except (UnicodeEncodeError, msgspec.EncodeError):  # an odd string that Python's parser let through
        return b"".join(_encode_alone(event, batch.extra.get(i)) for i, event in enumerate(batch.events))


def _microseconds(times_ns: Times) -> list[Any]:
    """The times as numbers that say the ns: doubles, and text where a double cannot hold them."""
    if not len(times_ns) or int(np.abs(times_ns).max()) < _EXACT_NS:
        return (times_ns / 1000).tolist()  # type: ignore[no-any-return]
    return [
        Raw(b"%s%d.%03d" % (b"-" if time < 0 else b"", *divmod(abs(time), 1000)))
        for time in times_ns.tolist()
    ]


def _with(data: bytes, extra: dict[int, dict[str, Any]]) -> bytes:
    lines = data.split(b"\n")
    for place, item in extra.items():
        lines[place] = lines[place][:-2] + b"," + encode_number(item)[1:] + b","
    return b"\n".join(lines)


def _encode_alone(event: Event, extra: dict[str, Any] | None) -> bytes:
    for key in ("ph", "name", "cat", "bp", "s", "id"):
        text = getattr(event, key)
        if isinstance(text, str):
            setattr(event, key, text.encode(errors="backslashreplace").decode())
    data = _encoder.encode(event)
    if extra:
        try:
            data = data[:-1] + b"," + encode_number(extra)[1:]
        except (UnicodeEncodeError, msgspec.EncodeError):
            data = data[:-1] + b',"extra":' + encode_number(ascii(extra)) + b"}"
    return data + b",\n"
