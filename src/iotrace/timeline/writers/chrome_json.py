"""Chrome JSON: one event a line, in part files that become one document."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iotrace.sources.byte_stream import Progress, append, silent
from iotrace.sources.chrome.batch import Batch
from iotrace.sources.chrome.event import encode_number
from iotrace.timeline.writers.chrome_lines import lines_of
from iotrace.timeline.writers.columns import Columns
from iotrace.timeline.writers.id_map import ThreadTrack, Tracks
from iotrace.timeline.writers.lanes import NEXT, STACKED, UNBOUND, Lanes
from iotrace.timeline.writers.spill import BEGIN, END, SLICE, Spill


def opening(base_ns: int) -> bytes:
    """How a document begins: with what its times are relative to, before what may be nested in its end."""
    return b'{"displayTimeUnit":"ms","baseTimeNanoseconds":%d,"traceEvents":[\n' % base_ns


class ChromePart:
    """One source's events, behind the document's opening, as lines that end in a comma."""

    needs_all_rows = False

    def __init__(self, path: Path, base_ns: int) -> None:
        self._opening = opening(base_ns)
        self._file: BinaryIO = path.open("w+b")
        self._path = path
        self._blocks: list[tuple[int, int, int]] = []  # first line, offset, bytes
        self._lines = 0
        self._bytes = self._file.write(self._opening)

    def write(self, batch: Batch, columns: Columns) -> tuple[Any, Any]:
        """Append the events; returns their lines."""
        data = lines_of(batch, columns)
        self._blocks.append((self._lines, self._bytes, len(data)))
        self._file.write(data)
        self._lines += len(batch)
        self._bytes += len(data)
        lines = np.arange(self._lines - len(batch), self._lines, dtype=np.int64)
        return lines, np.zeros(len(batch), np.int32)

    def finish(
        self, spill: Spill, tracks: Tracks, delete_unbound: bool, progress: Progress = silent
    ) -> tuple[int, int]:
        """Move what overlaps into lanes of its own, in place; returns slices moved and arrow ends unbound.

        `progress` hears how many rows of the spill are done.
        """
        ordinals, numbers, moved = _moves(spill, tracks, not delete_unbound, progress)
        unbound = int((numbers == UNBOUND).sum())
        order = np.argsort(ordinals)
        ordinals, numbers = ordinals[order], numbers[order]
        self._file.flush()
        firsts = [first for first, _, _ in self._blocks]
        deletes = delete_unbound and unbound > 0
        target = self._path.with_suffix(".kept").open("wb") if deletes else None
        if target is not None:
            target.write(self._opening)
        for block, (first, offset, size) in enumerate(self._blocks):
            last = firsts[block + 1] if block + 1 < len(firsts) else self._lines
            low, high = np.searchsorted(ordinals, [first, last])
            if low == high and target is None:
                continue
            self._file.seek(offset)
            data = bytearray(self._file.read(size))
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
            for place, number in zip(
                (ordinals[low:high] - first).tolist(), numbers[low:high].tolist(), strict=True
            ):
                _edit(data, int(ends[place - 1]) + 1 if place else 0, int(ends[place]), number, deletes)
            if target is not None:
                target.write(data.replace(b"\0", b""))
            else:
                self._file.seek(offset)
                self._file.write(data)
        self._file.close()
        if target is not None:
            target.close()
            os.replace(target.name, self._path)
        return moved, unbound


def _moves(spill: Spill, tracks: Tracks, is_whole: bool, progress: Progress) -> tuple[Any, Any, int]:
    """The lines that change, their new thread numbers or `UNBOUND`, and how many of them are slices.

    The numbers of arrows' ends that bind what begins next are complements: negative, below `UNBOUND`.
    """
    slices = done = 0
    ordinals: list[Any] = [np.empty(0, np.int64)]
    numbers: list[Any] = [np.empty(0, np.int64)]
    for index in spill.threads():
        thread = tracks.threads[index]
        for rows, placed in Lanes(is_whole).through(spill.windows(index)):
            kinds = rows["kind"]
            done += len(rows)
            progress(done)
            moved = np.flatnonzero((placed != 0) & (kinds != BEGIN) & (kinds != END))
            if not len(moved):
                continue
            thread.used |= is_whole and bool((placed == UNBOUND).any())  # they become marks
            slices += int((kinds[moved] == SLICE).sum())
            found = {lane: _number(tracks, thread, lane) for lane in np.unique(placed[moved]).tolist()}
            ordinals.append(rows["ordinal"][moved])
            numbers.append(np.array([found[lane] for lane in placed[moved].tolist()], np.int64))
    return np.concatenate(ordinals), np.concatenate(numbers), slices


def _number(tracks: Tracks, thread: ThreadTrack, lane: int) -> int:
    if lane == UNBOUND:
        return UNBOUND
    own = lane & ~NEXT
    tid = (tracks.stacked_of(thread) if own == STACKED else tracks.overflow(thread, own)).tid
    return ~tid if lane & NEXT else tid


def _edit(data: bytearray, start: int, end: int, number: int, delete: bool) -> None:
    """Give the line another thread number of the same width, or make a mark of a loose arrow end.

    Without `bp` an arrow ends at the slice that begins next: of such an end it is taken away again.

    A line that is deleted becomes zeros, newline included, for the caller to leave out: no line holds one.
    """
    if number != UNBOUND:
        if number < 0:
            number = ~number
            at = data.index(_TO_ENCLOSING, start, end)
            data[at : at + len(_TO_ENCLOSING)] = b" " * len(_TO_ENCLOSING)
        at = data.index(b',"tid":', start, end) + len(b',"tid":')
        digits = b"%d" % number
        data[at : at + len(digits)] = digits
    elif delete:
        data[start : end + 1] = bytes(end + 1 - start)
    else:
        data[start : start + len(_MARK)] = _MARK


_MARK = b'{"ph":"i"'
_TO_ENCLOSING = b',"bp":"e"'


def join(
    parts: Iterable[Path],
    metadata: Iterable[dict[str, Any]],
    base_ns: int,
    document: dict[str, Any],
    out: BinaryIO,
) -> None:
    """Write the rest of a document that begins with a part, or with its opening: the other parts' lines, the
    names of processes and threads, and `document`'s keys."""
    for part in parts:
        append(part, out, len(opening(base_ns)))
    lines = b",\n".join(encode_number(item) for item in metadata)
    out.write(lines + b"\n]," + encode_number(document)[1:] + b"\n")
