"""Chrome JSON: one event a line, in part files that become one document."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from iotrace import compiled
from iotrace.sources.byte_stream import CHUNK_BYTES, Progress, append, silent
from iotrace.sources.chrome.batch import Batch, Event, EventBatch, Times, encode_number
from iotrace.sources.chrome.scan import KEYS, TextBatch
from iotrace.timeline.writers.columns import Columns, renumber
from iotrace.timeline.writers.id_map import Process, ThreadTrack, Tracks
from iotrace.timeline.writers.lanes import BEGIN, END, NEXT, SLICE, STACKED, UNBOUND, Lanes, Spill

_NEAR_BYTES = 1 << 16
_LINE = np.dtype([("offset", "<i8"), ("number", "<i8"), ("size", "<i4")])
_EXACT_NS = 1 << 53
Sizes = npt.NDArray[np.int32]  # of lines, in bytes with their newlines

_REWRITTEN_BYTES = 224  # of a line, at most, in addition to what its event holds
_encoder = msgspec.json.Encoder(decimal_format="number")


def opening(base_ns: int) -> bytes:
    """How a document begins: with what its times are relative to, before what may be nested in its end."""
    return b'{"displayTimeUnit":"ms","baseTimeNanoseconds":%d,"traceEvents":[\n' % base_ns


class ChromePart:
    """One input's events, after the document's opening, as lines that end in a comma."""

    needs_all_rows = False
    processless_scope = ord("g")

    def __init__(self, path: Path, base_ns: int) -> None:
        self._opening = opening(base_ns)
        self._file: BinaryIO = path.open("w+b")
        self._path = path
        self._bytes = self._file.write(self._opening)

    def write(self, batch: Batch, columns: Columns) -> tuple[Any, Any]:
        """Append the events; return where their lines begin, and their sizes in bytes."""
        data, sizes = write_lines(batch, columns)
        self._file.write(data)
        ends = self._bytes + np.cumsum(sizes, dtype=np.int64)
        self._bytes += len(data)
        return ends - sizes, sizes

    def finish(
        self, spill: Spill, tracks: Tracks, delete_unbound: bool, progress: Progress = silent
    ) -> tuple[int, int]:
        """Move what overlaps into lanes of its own, in place; return slices moved and flow ends unbound.

        `progress` hears how many rows of the spill are done.
        """
        self._file.flush()
        lines, moved = _moves(spill, tracks, not delete_unbound, progress)
        lines = lines[np.argsort(lines["offset"])]
        is_unbound = lines["number"] == UNBOUND
        deleted = lines[is_unbound] if delete_unbound else lines[:0]
        self._edit(lines[~is_unbound] if delete_unbound else lines)
        if len(deleted):
            self._delete(deleted)
        self._file.close()
        return moved, int(is_unbound.sum())

    def _edit(self, lines: Any) -> None:
        """Write other thread numbers into lines, those near each other at once."""
        ends = lines["offset"] + lines["size"]
        gaps = np.flatnonzero(lines["offset"][1:] - ends[:-1] > _NEAR_BYTES) + 1
        for near in np.split(np.arange(len(lines)), gaps) if len(lines) else ():
            for piece in np.array_split(
                near, 1 + int(ends[near[-1]] - lines["offset"][near[0]]) // CHUNK_BYTES
            ):
                self._edit_near(lines[piece])

    def _edit_near(self, lines: Any) -> None:
        begin, end = int(lines["offset"][0]), int(lines["offset"][-1] + lines["size"][-1])
        self._file.seek(begin)
        data = bytearray(self._file.read(end - begin))
        for offset, size, number in zip(
            (lines["offset"] - begin).tolist(), lines["size"].tolist(), lines["number"].tolist(), strict=True
        ):
            _edit_line(data, offset, offset + size, number)
        self._file.seek(begin)
        self._file.write(data)

    def _delete(self, lines: Any) -> None:
        """Leave lines out: of the rest a new file is made."""
        kept = self._path.with_suffix(".kept")
        begins = [0, *(lines["offset"] + lines["size"]).tolist()]
        with kept.open("wb") as out:
            for begin, end in zip(begins, [*lines["offset"].tolist(), self._bytes], strict=True):
                self._file.seek(begin)
                for at in range(begin, end, CHUNK_BYTES):
                    out.write(self._file.read(min(CHUNK_BYTES, end - at)))
        os.replace(kept, self._path)


def _moves(spill: Spill, tracks: Tracks, is_whole: bool, progress: Progress) -> tuple[Any, int]:
    """Return the lines that change, with new thread numbers or `UNBOUND`, and how many of them are slices.

    The numbers of flow ends that bind what begins next are complements: negative, below `UNBOUND`.
    """
    slices = done = 0
    blocks = [np.empty(0, _LINE)]
    for index in spill.threads():
        thread = tracks.threads[index]
        for rows, placed in Lanes(is_whole).through(spill.windows(index)):
            done += len(rows)
            progress(done)
            moved = np.flatnonzero(placed)
            kinds = rows["kind"][moved]
            is_stacked = (kinds == BEGIN) | (kinds == END)
            moved, kinds = moved[~is_stacked], kinds[~is_stacked]
            if not len(moved):
                continue
            thread.used |= is_whole and bool((placed == UNBOUND).any())  # they become instants
            slices += int((kinds == SLICE).sum())
            lanes, of_lane = np.unique(placed[moved], return_inverse=True)
            lines = np.empty(len(moved), _LINE)
            lines["offset"], lines["size"] = rows["ordinal"][moved], rows["size"][moved]
            lines["number"] = np.array([_number(tracks, thread, lane) for lane in lanes.tolist()])[of_lane]
            blocks.append(lines)
    return np.concatenate(blocks), slices


def _number(tracks: Tracks, thread: ThreadTrack, lane: int) -> int:
    if lane == UNBOUND:
        return UNBOUND
    own = lane & ~NEXT
    tid = (tracks.stacked_track(thread) if own == STACKED else tracks.overflow(thread, own)).tid
    return ~tid if lane & NEXT else tid


def _edit_line(data: bytearray, start: int, end: int, number: int) -> None:
    """Give the line another thread number of the same width, or make an instant of a loose flow end.

    Without `bp` a flow ends at the slice that begins next: of such an end it is taken away again.
    """
    if number == UNBOUND:
        data[start : start + len(_INSTANT)] = _INSTANT
        return
    if number < 0:
        number = ~number
        at = data.index(_TO_ENCLOSING, start, end)
        data[at : at + len(_TO_ENCLOSING)] = b" " * len(_TO_ENCLOSING)
    at = data.index(b',"tid":', start, end) + len(b',"tid":')
    digits = b"%d" % number
    data[at : at + len(digits)] = digits


_INSTANT = b'{"ph":"i"'
_TO_ENCLOSING = b',"bp":"e"'


def join(
    parts: Iterable[Path],
    processes: Iterable[Process],
    base_ns: int,
    document: dict[str, Any],
    out: BinaryIO,
) -> None:
    """Write the rest of a document that begins with a part, or with its opening: the other parts' lines, the
    names of processes and threads, and `document`'s keys."""
    for part in parts:
        append(part, out, len(opening(base_ns)))
    # An event for each key: the last line ends without a comma also where no process has a name.
    metadata = [*_names(processes), *(_metadata(key, 0, 0, {}) for key in document)]
    lines = b",\n".join(encode_number(item) for item in metadata)
    out.write(lines + b"\n]" + (b"," + encode_number(document)[1:] if document else b"}") + b"\n")


def _names(processes: Iterable[Process]) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of processes and threads as metadata events."""
    for process in processes:
        yield _metadata("process_name", process.pid, 0, {"name": process.name})
        if process.labels:
            yield _metadata("process_labels", process.pid, 0, {"labels": process.labels})
        yield _metadata("process_sort_index", process.pid, 0, {"sort_index": process.order})
        for thread in process.threads:
            name = f"{thread.name} +{thread.lane}" if thread.lane else thread.name
            yield _metadata("thread_name", thread.pid, thread.tid, {"name": name})
            yield _metadata("thread_sort_index", thread.pid, thread.tid, {"sort_index": thread.order})


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def write_lines(batch: Batch, columns: Columns) -> tuple[bytes | memoryview, Sizes]:
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
