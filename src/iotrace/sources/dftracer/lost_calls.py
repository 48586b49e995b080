"""Calls that dftracer traced and lost: the numbers of its events run on within a log."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt


class Numbers:
    """The events' numbers in one log, by process, in the order of the file."""

    def __init__(self) -> None:
        self._of_pid: dict[int, array[int]] = {}

    def add(self, pid: int, number: int) -> None:
        """Note the number of one event."""
        numbers = self._of_pid.get(pid)
        if numbers is None:
            numbers = self._of_pid[pid] = array("q")
        numbers.append(number)

    def problems(self) -> list[str]:
        """A sentence for each process that lost calls."""
        found = []
        for pid, numbers in self._of_pid.items():
            lost = missing(np.frombuffer(numbers, dtype=np.int64))
            if lost:
                what = "1 call" if lost == 1 else f"{lost} calls"
                found.append(f"dftracer lost {what} of pid {pid}")
        return found


def missing(numbers: npt.NDArray[np.int64]) -> int:
    """How many numbers are not there, at least.

    dftracer counts from 1, and threads write a little out of order. A process that executes the same command
    line again goes on in the same log and counts from 1 again. What was lost at the end has left no gap.
    """
    lost = 0
    for run in np.split(numbers, np.flatnonzero(numbers == 1)[1:]):
        if len(run):
            seen = np.unique(run)
            lost += int(seen[-1]) - min(1, int(seen[0])) + 1 - len(seen)
    return lost
