"""Figures of a program's own clock (`common/clock.py`), from what it wrote at its exit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

Interval = tuple[float, float]


@dataclass(frozen=True)
class OwnClock:
    """What a program measured of its own loop, in seconds."""

    cuts: list[float]
    waits: list[Interval]
    evaluations: list[Interval]

    def fraction(self, skipped: int) -> float | None:
        """Compute the share of the loop that was waited, without the first `skipped` steps and the last.

        A step lasts from its first batch to the next step's, less the evaluations in it; the last has no end.
        """
        step_s = wait_s = 0.0
        for step in list(pairwise(self.cuts))[skipped:]:
            step_s += step[1] - step[0] - sum(_shared(step, one) for one in self.evaluations)
            for wait in self.waits:
                if not any(_shared(wait, one) for one in self.evaluations):
                    wait_s += _shared(step, wait)
        return wait_s / step_s if step_s else None


def _shared(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def read(path: Path) -> OwnClock:
    """Read what a rank's clock wrote; without steps where it wrote nothing."""
    if not path.exists():
        return OwnClock([], [], [])
    found = json.loads(path.read_text())
    return OwnClock(
        found["cuts"], [(a, b) for a, b in found["waits"]], [(a, b) for a, b in found["evaluations"]]
    )
