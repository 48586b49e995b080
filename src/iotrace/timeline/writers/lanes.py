"""Lanes: Perfetto drops a slice that overlaps its neighbour without nesting, so it gets a row of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace import compiled
from iotrace.timeline.model import Slice
from iotrace.timeline.writers import compiled_lanes
from iotrace.timeline.writers.spill import BEGIN, END, FLOW, FLOW_NEXT, ROW, SLICE, Rows

UNBOUND = -1
# The row of begin and end events, which stand apart; and what is added to the lane of an arrow's end that
# binds the slice that begins next there, not the one around it.
STACKED, NEXT = 1 << 20, 1 << 21


class Lanes:
    """Places the rows of one thread, window after window, in order of start and the longest first.

    `is_whole`: no event of the thread was left out.
    """

    def __init__(self, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._compiled = compiled_lanes.Lanes() if compiled.available() else None
        # Per lane the slices that are open, outermost first: their ends and, beside them, their starts.
        self._ends: list[list[int]] = [[]]
        self._starts: list[list[int]] = [[]]
        self._begins: list[int] = []  # what begin events opened

    def through(self, windows: Iterable[Rows]) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
        """All rows of the thread with their lanes, in windows: `UNBOUND` for an arrow's end in no slice.

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
                yield rows[:stop], self.place(rows[:stop])
        if held is not None:
            yield held, self.place(held)

    def place(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The lane of each row of a window, behind which no arrow's end waits for a slice."""
        placed: Any = np.empty(0, np.int32)
        if self._compiled is not None:
            placed = self._compiled.place(rows)
        if len(placed) < len(rows):
            if self._compiled is not None:
                self._starts, self._ends, self._begins = self._compiled.open()
                self._compiled = None
            placed = np.concatenate([placed, np.array(self._place(rows[len(placed) :]), np.int32)])
        return self._with_next(rows["kind"], placed)

    def _with_next(self, kinds: Any, placed: Any) -> npt.NDArray[np.int32]:
        """Ends of arrows that mean the slice that begins next go to its lane."""
        if not (kinds == FLOW_NEXT).any():
            return placed  # type: ignore[no-any-return]
        begins = np.flatnonzero((kinds == SLICE) | (kinds == BEGIN))
        waiting = np.flatnonzero((kinds == FLOW_NEXT) & ((placed == UNBOUND) | (placed >= NEXT)))
        following = np.searchsorted(begins, waiting)
        found = following < len(begins)
        placed[waiting[found]] = placed[begins[following[found]]] | NEXT
        # Where none begins later, the slice around it is meant, unless that one was left out.
        alone = waiting[~found]
        around = (placed[alone] != UNBOUND) & self._is_whole
        placed[alone] = np.where(around, placed[alone] & ~NEXT, UNBOUND)
        return placed  # type: ignore[no-any-return]

    def _place(self, rows: Rows) -> list[int]:
        found: list[int] = []
        for start, end, kind in zip(
            rows["start"].tolist(), rows["end"].tolist(), rows["kind"].tolist(), strict=True
        ):
            if kind == SLICE:
                found.append(self._lane_of_slice(start, end))
            elif kind in (FLOW, FLOW_NEXT):
                lane, began = self._lane_of_arrow(start)
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

    def _lane_of_arrow(self, time: int) -> tuple[int, int]:
        """The lane of the slice that began last of those that hold `time`, their ends included; its start.

        Kineto's arrows start and end where their slices begin.
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


def lanes(slices: list[Slice]) -> list[list[Slice]]:
    """Divide slices into lanes in which any two are disjoint or nested; each lane sorted, outer first."""
    ordered = sorted(slices, key=lambda item: (item.start_ns, -item.end_ns))
    rows = np.zeros(len(ordered), ROW)
    rows["kind"] = SLICE
    rows["start"] = [item.start_ns for item in ordered]
    rows["end"] = [item.end_ns for item in ordered]
    placed = Lanes().place(rows)
    found: list[list[Slice]] = [[] for _ in range(int(placed.max(initial=-1)) + 1)]
    for item, lane in zip(ordered, placed.tolist(), strict=True):
        found[lane].append(item)
    return found
