"""From a process's CLOCK_MONOTONIC to CLOCK_REALTIME of its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Clock:
    """Converts by a process's anchors, rows of (mono_ns, real_ns, bound_ns) in order of time.

    Between two anchors the offset is interpolated, outside them the nearest holds: a clock that was
    stepped during the run is undone to within the distance of two anchors (one second).
    """

    def __init__(self, anchors: Sequence[Sequence[int]]) -> None:
        rows = np.array(sorted(tuple(anchor) for anchor in anchors), dtype=np.int64)
        self._mono = rows[:, 0]
        offsets = rows[:, 1] - rows[:, 0]
        # Floats hold the small differences alone; the large common part stays an integer.
        self._base = int(offsets[0])
        self._difference = (offsets - self._base).astype(np.float64)
        self.bound_ns = int(rows[:, 2].max())

    def real(self, mono_ns: Any) -> Times:
        """CLOCK_REALTIME in ns for times of CLOCK_MONOTONIC in ns, of the same shape."""
        mono = np.asarray(mono_ns, dtype=np.int64)
        origin = self._mono[0]
        difference = np.interp(
            (mono - origin).astype(np.float64), (self._mono - origin).astype(np.float64), self._difference
        )
        return np.asarray(mono + self._base + np.rint(difference).astype(np.int64), dtype=np.int64)

    def real_one(self, mono_ns: int) -> int:
        """`real` for one time."""
        return int(self.real(mono_ns))
