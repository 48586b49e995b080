"""Rows on disk by thread, read back in order of time: what lanes need, without holding a file's events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# FLOW_NEXT: a flow's end that means the slice that begins next; ELSEWHERE: on no thread's track.
SLICE, FLOW, FLOW_NEXT, BEGIN, END, INSTANT, ELSEWHERE = range(7)
ROW = np.dtype([("start", "<i8"), ("end", "<i8"), ("ordinal", "<i8"), ("kind", "<i4"), ("size", "<i4")])
Rows = npt.NDArray[Any]


class Spill:
    """Appends sorted pieces; `windows` merges them again.

    A window holds the rows that no later piece can precede. In files that are nearly in order, as all
    profilers write them, that is a few pieces at a time.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._extents: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # first start, offset, count
        self._rows = 0

    def add(self, thread: Any, start: Any, end: Any, ordinal: Any, kind: Any, size: Any) -> None:
        """Rows as columns: times in ns, `ordinal` (it grows) and `size` as the writer gave them."""
        if not len(thread):
            return
        rows = np.empty(len(thread), ROW)
        # By radix, of so few bits: threads are numbered by input, from 0.
        order = np.argsort(
            thread.astype(np.uint16 if int(thread.max()) < 1 << 16 else np.int64), kind="stable"
        )
        for name, column in zip(ROW.names or (), (start, end, ordinal, kind, size), strict=True):
            rows[name] = column
        rows, threads = rows.take(order), thread.take(order)
        bounds = np.flatnonzero(np.diff(threads, prepend=-1, append=-1))
        late = np.searchsorted(bounds, _unordered(rows, threads), side="right")
        for at in set(late.tolist()):
            piece = rows[bounds[at - 1] : bounds[at]]
            piece[:] = _ordered(piece)
        starts = rows["start"][bounds[:-1]].tolist()
        for first, last, start_ns in zip(bounds[:-1].tolist(), bounds[1:].tolist(), starts, strict=True):
            self._extents[int(threads[first])].append((start_ns, self._rows + first, last - first))
        self._file.write(rows.data)
        self._rows += len(rows)

    @property
    def rows(self) -> int:
        """How many there are, of all threads."""
        return self._rows

    def threads(self) -> list[int]:
        """The threads that have rows."""
        return sorted(self._extents)

    def windows(self, thread: int) -> Iterator[Rows]:
        """The thread's rows in order: by start, the longest first, then as they came."""
        self._file.flush()
        pending = np.empty(0, ROW)
        for first_start, offset, count in sorted(self._extents[thread]):
            split = int(np.searchsorted(pending["start"], first_start, side="left"))
            if split > len(pending) // 2:
                yield pending[:split]
                pending, split = pending[split:], 0
            self._file.seek(offset * ROW.itemsize)
            piece = np.frombuffer(self._file.read(count * ROW.itemsize), ROW)
            if split == len(pending):
                pending = np.concatenate([pending, piece])
                continue
            overlap = int(np.searchsorted(piece["start"], pending["start"][-1], side="right"))
            both = _ordered(np.concatenate([pending[split:], piece[:overlap]]))
            pending = np.concatenate([pending[:split], both, piece[overlap:]])
        if len(pending):
            yield pending

    def close(self) -> None:
        """Give the disk space back (the file has to be removed by its owner)."""
        self._file.close()


def _ordered(rows: Rows) -> Rows:
    """By start, the longest first, then as they came."""
    rows = rows.take(np.argsort(rows["start"], kind="stable"))  # nearly in order, mostly: all that is needed
    start, end, ordinal = (np.ascontiguousarray(rows[name]) for name in ("start", "end", "ordinal"))
    later = (end[1:] > end[:-1]) | ((end[1:] == end[:-1]) & (ordinal[1:] < ordinal[:-1]))
    if (later & (start[1:] == start[:-1])).any():
        return rows.take(np.lexsort((ordinal, -end, start)))
    return rows


def _unordered(rows: Rows, threads: Any) -> Any:
    """The rows behind which one of the same thread comes too late."""
    start, end = np.ascontiguousarray(rows["start"]), np.ascontiguousarray(rows["end"])
    late = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] > end[:-1]))
    return np.flatnonzero(late & (threads[1:] == threads[:-1]))
