"""Lanes: Perfetto drops a slice that overlaps another without nesting, so it gets a track of its own.

Rows on disk by thread, read back in order of time: what lanes need, without holding a file's events.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace import compiled

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
    """The rows after which a row of the same thread comes too late."""
    start, end = np.ascontiguousarray(rows["start"]), np.ascontiguousarray(rows["end"])
    late = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] > end[:-1]))
    return np.flatnonzero(late & (threads[1:] == threads[:-1]))


UNBOUND = -1
# The lane of begin and end events, which have one of their own; and what is added to the lane of a flow's end
# that binds the slice that begins next there, not the one around it.
STACKED, NEXT = 1 << 20, 1 << 21


class _Compiled(ctypes.Structure):
    """`Lanes` of lanes.c: the open slices of one thread's lanes, with room for so many lanes and levels."""

    _fields_ = [
        ("_count", ctypes.c_int64),
        ("_depth", ctypes.c_int64 * 64),
        ("_starts", ctypes.c_int64 * 512 * 64),
        ("_ends", ctypes.c_int64 * 512 * 64),
        ("_begun", ctypes.c_int64),
        ("_begins", ctypes.c_int64 * 512),
    ]

    def assign(self, rows: Rows) -> npt.NDArray[np.int32]:
        """Find the lane of each row; of fewer rows where there is no room for more."""
        rows = np.ascontiguousarray(rows)
        lanes = np.empty(len(rows), np.int32)
        assign = compiled.loaded().iotrace_place
        assign.restype = ctypes.c_int64
        count = assign(
            ctypes.byref(self),
            ctypes.c_void_p(rows.ctypes.data),
            ctypes.c_int64(len(rows)),
            ctypes.c_void_p(lanes.ctypes.data),
        )
        return lanes[:count]

    def open_slices(self) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """Return starts and ends of the open slices by lane, outermost first; starts of begin events."""
        depths = list(enumerate(self._depth[: self._count]))
        starts = [self._starts[lane][:depth] for lane, depth in depths]
        return starts, [self._ends[lane][:depth] for lane, depth in depths], self._begins[: self._begun]


class Lanes:
    """Assigns lanes to the rows of one thread, window after window, in order of start and the longest first.

    `is_whole`: no event of the thread was left out.
    """

    def __init__(self, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._compiled = _Compiled() if compiled.available() else None
        # Per lane the slices that are open, outermost first: their ends and, with them, their starts.
        self._ends: list[list[int]] = [[]]
        self._starts: list[list[int]] = [[]]
        self._begins: list[int] = []  # what begin events opened

    def through(self, windows: Iterable[Rows]) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
        """All rows of the thread with their lanes, in windows: `UNBOUND` for a flow's end in no slice.

        What waits for the slice that begins next waits for the window that holds it.
        """
        held: Any = None
        for window in windows:
            rows = window if held is None else np.concatenate([held, window])
            kinds = rows["kind"]
            stop = len(rows)
            if (kinds == FLOW_NEXT).any():
                begins = np.flatnonzero((kinds == SLICE) | (kinds == BEGIN))
                after = int(begins[-1]) + 1 if len(begins) else 0
                waiting = np.flatnonzero(kinds[after:] == FLOW_NEXT)
                stop = after + int(waiting[0]) if len(waiting) else stop
            held = rows[stop:] if stop < len(rows) else None
            if stop:
                yield rows[:stop], self.assign(rows[:stop])
        if held is not None:
            yield held, self.assign(held)

    def assign(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The lane of each row of a window, after which no flow's end waits for a slice."""
        lanes: Any = np.empty(0, np.int32)
        if self._compiled is not None:
            lanes = self._compiled.assign(rows)
        if len(lanes) < len(rows):
            if self._compiled is not None:
                self._starts, self._ends, self._begins = self._compiled.open_slices()
                self._compiled = None
            lanes = np.concatenate([lanes, np.array(self._assign(rows[len(lanes) :]), np.int32)])
        return self._with_next(rows["kind"], lanes)

    def _with_next(self, kinds: Any, lanes: Any) -> npt.NDArray[np.int32]:
        """Ends of flows that mean the slice that begins next go to its lane."""
        if not (kinds == FLOW_NEXT).any():
            return lanes  # type: ignore[no-any-return]
        begins = np.flatnonzero((kinds == SLICE) | (kinds == BEGIN))
        waiting = np.flatnonzero((kinds == FLOW_NEXT) & ((lanes == UNBOUND) | (lanes >= NEXT)))
        following = np.searchsorted(begins, waiting)
        follows = following < len(begins)
        lanes[waiting[follows]] = lanes[begins[following[follows]]] | NEXT
        # Where none begins later, the slice around it is meant, unless that one was left out.
        alone = waiting[~follows]
        around = (lanes[alone] != UNBOUND) & self._is_whole
        lanes[alone] = np.where(around, lanes[alone] & ~NEXT, UNBOUND)
        return lanes  # type: ignore[no-any-return]

    def _assign(self, rows: Rows) -> list[int]:
        lanes: list[int] = []
        for start, end, kind in zip(
            rows["start"].tolist(), rows["end"].tolist(), rows["kind"].tolist(), strict=True
        ):
            if kind == SLICE:
                lanes.append(self._lane_of_slice(start, end))
            elif kind in (FLOW, FLOW_NEXT):
                lane, began = self._lane_of_flow(start)
                is_next = kind == FLOW_NEXT and lane != UNBOUND and began != start
                lanes.append(lane | NEXT if is_next else lane)
            elif kind == BEGIN:
                self._begins.append(start)
                lanes.append(STACKED)
            elif kind == END:
                del self._begins[-1:]
                lanes.append(STACKED)
            else:
                lanes.append(0)
        return lanes

    def _lane_of_slice(self, start: int, end: int) -> int:
        """The first lane where the slice is alone or within another."""
        for lane, (starts, ends) in enumerate(zip(self._starts, self._ends, strict=True)):
            while ends and ends[-1] <= start:
                ends.pop()
                starts.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                starts.append(start)
                return lane
        self._ends.append([end])
        self._starts.append([start])
        return len(self._ends) - 1

    def _lane_of_flow(self, time: int) -> tuple[int, int]:
        """The lane of the last slice to begin that holds `time`, its end included; and its start.

        Kineto's flows start and end where their slices begin.
        """
        best, best_start = UNBOUND, 0
        for lane, (starts, ends) in enumerate(zip(self._starts, self._ends, strict=True)):
            # A slice inside may be over while the one around it is not.
            inner = next((i for i in range(len(ends) - 1, -1, -1) if ends[i] >= time), None)
            if inner is not None and (best == UNBOUND or starts[inner] > best_start):
                best, best_start = lane, starts[inner]
        if self._begins and (best == UNBOUND or self._begins[-1] > best_start):
            return STACKED, self._begins[-1]
        return best, best_start
