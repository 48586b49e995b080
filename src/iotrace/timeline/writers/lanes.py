"""Lanes: Perfetto drops a slice that overlaps another without nesting, so it gets a track of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace import compiled
from iotrace.timeline.writers.spill import BEGIN, END, FLOW, FLOW_NEXT, SLICE, Rows

UNBOUND = -1
# The lane of begin and end events, which stand apart; and what is added to the lane of a flow's end that
# binds the slice that begins next there, not the one around it.
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

    def lanes_of(self, rows: Rows) -> npt.NDArray[np.int32]:
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
        # Per lane the slices that are open, outermost first: their ends and, beside them, their starts.
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
        """The lane of each row of a window, behind which no flow's end waits for a slice."""
        lanes: Any = np.empty(0, np.int32)
        if self._compiled is not None:
            lanes = self._compiled.lanes_of(rows)
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
        found = following < len(begins)
        lanes[waiting[found]] = lanes[begins[following[found]]] | NEXT
        # Where none begins later, the slice around it is meant, unless that one was left out.
        alone = waiting[~found]
        around = (lanes[alone] != UNBOUND) & self._is_whole
        lanes[alone] = np.where(around, lanes[alone] & ~NEXT, UNBOUND)
        return lanes  # type: ignore[no-any-return]

    def _assign(self, rows: Rows) -> list[int]:
        found: list[int] = []
        for start, end, kind in zip(
            rows["start"].tolist(), rows["end"].tolist(), rows["kind"].tolist(), strict=True
        ):
            if kind == SLICE:
                found.append(self._lane_of_slice(start, end))
            elif kind in (FLOW, FLOW_NEXT):
                lane, began = self._lane_of_flow(start)
                is_next = kind == FLOW_NEXT and lane != UNBOUND and began != start
                found.append(lane | NEXT if is_next else lane)
            elif kind == BEGIN:
                self._begins.append(start)
                found.append(STACKED)
            elif kind == END:
                del self._begins[-1:]
                found.append(STACKED)
            else:
                found.append(0)
        return found

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
        """The lane of the slice that began last of those that hold `time`, their ends included; its start.

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
