"""The time that a search may take, and how long its runs take."""

from __future__ import annotations

import math
from collections.abc import Callable


class NoRoomError(Exception):
    """The budget has no room for one more run."""


class Budget:
    """`seconds` from `begin` on, without end where they are None."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds, self.clock = seconds, clock
        self._until = math.inf
        self._took: list[float] = []

    def begin(self, took: list[float]) -> None:
        """Let the time run; `took` are the seconds of runs that are there already."""
        self._until = math.inf if self._seconds is None else self.clock() + self._seconds
        self._took = [*took]

    def add(self, seconds: float) -> None:
        """Note how long a run took, with the look at its session."""
        self._took.append(seconds)

    def has_room(self, runs: int) -> bool:
        """Whether so many further runs end in time; of the first one nobody knows."""
        return not self._took or self.clock() + runs * self._run_s <= self._until

    def check(self, runs: int) -> None:
        """Raise NoRoomError where so many further runs would not end in time."""
        if not self.has_room(runs):
            what = "one more run" if runs == 1 else "one more setting and a pair as proof:"
            each = f"of about {self._run_s:.0f} s" if runs == 1 else f"runs take about {self._run_s:.0f} s"
            raise NoRoomError(f"no room in the budget for {what} {each}")

    @property
    def _run_s(self) -> float:
        return sum(self._took) / len(self._took)
