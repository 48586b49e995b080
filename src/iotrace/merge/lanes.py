"""Lanes: Perfetto drops a slice that overlaps its neighbour without nesting, so it gets a row of its own."""

from __future__ import annotations

from iotrace.merge.spill import FLOW, SLICE, Rows

UNBOUND = -1


class Lanes:
    """Places the slices of one thread, window after window, in order of start and the longest first."""

    def __init__(self) -> None:
        # Per lane the slices that are open, outermost first: their ends and, beside them, their starts.
        self._ends: list[list[int]] = [[]]
        self._starts: list[list[int]] = [[]]

    def place(self, rows: Rows) -> list[int]:
        """The lane of each row; `UNBOUND` for an arrow's end that no slice holds."""
        found = []
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
        return found

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
