"""Figures sampled over time, brought to the measured time: what the measured steps cover."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Coverage
from iotrace.analysis.steps import Step
from iotrace.sources.clock import Times
from iotrace.sources.telemetry import Floats, Series

# A sample stands for the time since the one before, but for no longer than that: NVML averages its
# utilisation over 1/6 to 1 s, and what lies before a gap is not known.
_LONGEST_HOLD_NS = 2_500_000_000
# How much of the measured time samples have to cover, for a sum over it to be told.
_COVERED = 0.99


class MeasuredTime:
    """The union of the measured steps."""

    def __init__(self, steps: list[Step]) -> None:
        self._time = Coverage(
            np.array([step.start_ns for step in steps], dtype=np.int64),
            np.array([step.end_ns for step in steps], dtype=np.int64),
        )
        self.length_ns = int((self._time.ends - self._time.starts).sum())

    def weights(self, time_ns: Times) -> Floats:
        """How many ns of the measured time each sample stands for."""
        if not len(time_ns) or not self.length_ns:
            return np.zeros(len(time_ns))
        held = np.diff(time_ns, prepend=time_ns[0] - _LONGEST_HOLD_NS)
        if len(time_ns) > 1:  # the first stands for as long as the others do
            held[0] = np.median(held[1:])
        held = np.clip(held, 0, _LONGEST_HOLD_NS)
        return self._time.within(time_ns - held, time_ns).astype(np.float64)

    def mean(self, series: Series | None) -> float | None:
        """The mean of a gauge, by the time that each sample stands for; None without a sample."""
        if series is None:
            return None
        weights = self.weights(series.time_ns)
        total = weights.sum()
        return float((series.value * weights).sum() / total) if total else None

    def extreme(self, series: Series | None, largest: bool = True) -> float | None:
        """The largest or smallest value of a gauge; None without a sample."""
        if series is None:
            return None
        inside = series.value[self.weights(series.time_ns) > 0]
        if not len(inside):
            return None
        return float(inside.max() if largest else inside.min())

    def growth(self, counter: Series | None) -> float | None:
        """How much a counter grew, interpolated; None unless its samples cover the measured time."""
        if counter is None or len(counter.time_ns) < 2 or not self.length_ns:
            return None
        covered = self._time.within(counter.time_ns[:1], counter.time_ns[-1:])[0]
        if covered < _COVERED * self.length_ns:
            return None
        origin = counter.time_ns[0]
        times = (counter.time_ns - origin).astype(np.float64)
        at_end = np.interp((self._time.ends - origin).astype(np.float64), times, counter.value)
        at_start = np.interp((self._time.starts - origin).astype(np.float64), times, counter.value)
        return float((at_end - at_start).sum())

    def change(self, gauge: Series | None) -> float | None:
        """A gauge's value at the end of the measured time less that at its start."""
        if gauge is None or not self.length_ns:
            return None
        ends = np.array([self._time.starts[0], self._time.ends[-1]])
        if gauge.time_ns[-1] < ends[0] or gauge.time_ns[0] > ends[1]:
            return None
        origin = gauge.time_ns[0]
        values = np.interp(
            (ends - origin).astype(np.float64), (gauge.time_ns - origin).astype(np.float64), gauge.value
        )
        return float(values[1] - values[0])

    def per_second(self, amount: float | None) -> float | None:
        """`amount` over the measured time, per second."""
        return None if amount is None or not self.length_ns else amount / (self.length_ns / 1e9)
