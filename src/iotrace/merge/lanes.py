"""Lanes: Perfetto drops a slice that overlaps its neighbour without nesting, so it gets a row of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.merge import compiled
from iotrace.merge.spill import FLOW, SLICE, Rows

UNBOUND = -1


class Lanes:
    """Places the slices of one thread, window after window, in order of start and the longest first."""

    def __init__(self) -> None:
        self._compiled = compiled.Lanes() if compiled.available() else None
        # Per lane the slices that are open, outermost first: their ends and, beside them, their starts.
        self._ends: list[list[int]] = [[]]
        self._starts: list[list[int]] = [[]]

    def place(self, rows: Rows) -> npt.NDArray[np.int32]:
        """The lane of each row; `UNBOUND` for an arrow's end that no slice holds."""
        done: Any = np.empty(0, np.int32)
        if self._compiled is not None:
            done = self._compiled.place(rows)
            if len(done) == len(rows):
                return done  # type: ignore[no-any-return]
            self._starts, self._ends = self._compiled.open()
            self._compiled = None
        return np.concatenate([done, np.array(self._place(rows[len(done) :]), np.int32)])

    def _place(self, rows: Rows) -> list[int]:
        found: list[int] = []
        for start, end, kind in zip(
            rows["start"].tolist(), rows["end"].tolist(), rows["kind"].tolist(), strict=True
        ):
            if kind == SLICE:
                found.append(self._lane_of_slice(start, end))
            elif kind == FLOW:
                found.append(self._lane_of_arrow(start))
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

    def _lane_of_arrow(self, time: int) -> int:
        """The lane of the slice that began last of those that hold `time`, their ends included.

        Kineto's arrows start and end where their slices begin.
        """
        best, best_start = UNBOUND, 0
        for lane, (starts, ends) in enumerate(zip(self._starts, self._ends, strict=True)):
            # A slice inside may be over while the one around it is not.
            inner = next((i for i in range(len(ends) - 1, -1, -1) if ends[i] >= time), None)
            if inner is not None and (best == UNBOUND or starts[inner] > best_start):
                best, best_start = lane, starts[inner]
        return best
