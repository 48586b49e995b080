"""Lanes: Perfetto drops a slice that overlaps its neighbour without nesting, so it gets a row of its own."""

from __future__ import annotations

import numpy as np

from iotrace.merge.spill import FLOW, SLICE, Rows

UNBOUND = -1


class Lanes:
    """Places the slices of one thread, window after window, in order of start and the longest first."""

    def __init__(self) -> None:
        # Per lane the slices that are open, outermost first: their ends and, beside them, their starts.
        self._ends: list[list[int]] = [[]]
        self._starts: list[list[int]] = [[]]

    def place(self, rows: Rows) -> list[int] | None:
        """The lane of each row; `UNBOUND` for an arrow's end that no slice holds. None: lane 0 for all."""
        if len(self._ends) == 1 and self._all_nest(rows):
            return None
        found: list[int] = []
        first_ends, first_starts = self._ends[0], self._starts[0]
        for start, end, kind in zip(
            rows["start"].tolist(), rows["end"].tolist(), rows["kind"].tolist(), strict=True
        ):
            if kind == SLICE:
                while first_ends and first_ends[-1] <= start:
                    first_ends.pop()
                    first_starts.pop()
                if not first_ends or end <= first_ends[-1]:
                    first_ends.append(end)
                    first_starts.append(start)
                    found.append(0)
                else:
                    found.append(self._elsewhere(start, end))
            elif kind == FLOW:
                found.append(self._holder(start))
            else:
                found.append(0)
        last = int(rows["start"][-1]) if len(rows) else 0
        if all(not ends or ends[0] < last for ends in self._ends[1:]):  # over: they need not be looked at
            del self._ends[1:], self._starts[1:]
        return found

    def _all_nest(self, rows: Rows) -> bool:
        """Whether lane 0 holds all rows, found without looking at one after another.

        At its start, each slice has as many slices open as its depth says, and the last one that began one
        level higher is its parent: if every slice ends within its parent, all nest.
        """
        is_slice = rows["kind"] == SLICE
        starts = np.concatenate([np.array(self._starts[0], np.int64), rows["start"][is_slice]])
        ends = np.concatenate([np.array(self._ends[0], np.int64), rows["end"][is_slice]])
        if len(starts):
            ordered_ends = np.sort(ends)
            over = np.searchsorted(ordered_ends, starts, side="right")
            # A slice of no length is over at its own start, and at that of the ones after it there.
            empty = ends == starts
            if empty.any():
                over -= np.searchsorted(starts[empty], starts, side="right")
                over += np.searchsorted(np.flatnonzero(empty), np.arange(len(starts)), side="left")
            depth = np.arange(len(starts)) - over
            parents = np.flatnonzero(depth == 0)
            for level in range(1, int(depth.max()) + 1):
                children = np.flatnonzero(depth == level)
                places = np.searchsorted(parents, children) - 1
                if (places < 0).any() or (ends[children] > ends[parents[places]]).any():
                    return False
                parents = children
        is_flow = rows["kind"] == FLOW
        flows = rows["start"][is_flow]
        if len(flows):
            if not len(starts):
                return False
            open_count = len(self._starts[0]) + np.cumsum(is_slice)[is_flow]
            open_count -= np.searchsorted(ordered_ends, flows, side="left")
            if (open_count <= 0).any():
                return False
        if len(starts):
            still = ends >= starts[-1]  # an arrow may yet end where a slice does
            self._starts[0], self._ends[0] = starts[still].tolist(), ends[still].tolist()
        return True

    def _elsewhere(self, start: int, end: int) -> int:
        for lane in range(1, len(self._ends)):
            ends, starts = self._ends[lane], self._starts[lane]
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

    def _holder(self, time: int) -> int:
        """The lane of the slice that began last of those that hold `time`, their ends included.

        Kineto's arrows start and end where their slices begin.
        """
        best, best_start = UNBOUND, None
        for lane, (ends, starts) in enumerate(zip(self._ends, self._starts, strict=True)):
            if ends and ends[-1] < time:  # a slice inside may be over while the one around it is not
                inner = next((i for i in range(len(ends) - 1, -1, -1) if ends[i] >= time), None)
                if inner is None:
                    continue
                start = starts[inner]
            elif ends:
                start = starts[-1]
            else:
                continue
            if best_start is None or start > best_start:
                best, best_start = lane, start
        return best
