"""Figures sampled over time, brought to the measured time: what the measured steps cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iotrace.analysis.intervals import Coverage
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.results.base import Figure, ReportPart, figures_of
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.records import Tick
from iotrace.sources.session import Rank
from iotrace.sources.telemetry import Floats, Series

# A sample stands for the time since the one before, but for no longer than that: NVML averages its
# utilisation over 1/6 to 1 s, and what lies before a gap is not known. What is asked for seldom, each 4 s
# where devices are many, stands for as long as its samples usually lie apart, and a quarter more.
_LONGEST_HOLD_NS = 2_500_000_000
_LONGEST_SELDOM_NS = 5_000_000_000
# How much of the measured time samples have to cover, for a sum over it to be known.
_COVERED = 0.99
# The same for a mean, an extreme and a change of a gauge: of half a run they are no figures of the run.
_SEEN = 0.75
LONG_NS = 10**15  # longer than any run


class MeasuredTime:
    """The union of the measured steps, without evaluation passes."""

    def __init__(self, steps: StepTable) -> None:
        self._time = Coverage(*steps.pieces[:2])
        self.length_ns = int((self._time.ends - self._time.starts).sum())
        middle = len(self._time.ends) // 2
        self.middle_ns = int(self._time.ends[middle]) if self.length_ns else 0

    def weights(self, time_ns: Times, longest_ns: int = _LONGEST_HOLD_NS) -> Floats:
        """How many ns of the measured time each sample stands for."""
        if not len(time_ns) or not self.length_ns:
            return np.zeros(len(time_ns))
        held = np.diff(time_ns, prepend=time_ns[0] - _LONGEST_HOLD_NS)
        if len(time_ns) > 1:  # the first stands for as long as the others do
            held[0] = usual_ns = np.median(held[1:])
            longest_ns = max(longest_ns, int(min(1.25 * usual_ns, _LONGEST_SELDOM_NS)))
        held = np.clip(held, 0, longest_ns)
        return self._time.within(time_ns - held, time_ns).astype(np.float64)

    def mean(self, series: Series | None, longest_ns: int = _LONGEST_HOLD_NS) -> float | None:
        """The mean of a gauge, by the time that each sample stands for; None where too much is not seen.

        `longest_ns`: a sample that is itself an average since the one before stands for all of that time.
        """
        if series is None:
            return None
        weights = self.weights(series.time_ns, longest_ns)
        if not self._seen(weights):
            return None
        return float((series.value * weights).sum() / weights.sum())

    def mean_share(self, time_ns: Times, shares: Floats) -> float | None:
        """The mean of shares of the time since the one before each; NaN is unknown."""
        known = ~np.isnan(shares)
        return self.mean(Series(time_ns[known], shares[known]), LONG_NS)

    def extreme(self, series: Series | None, largest: bool = True) -> float | None:
        """The largest or smallest value of a gauge; None where too much is not seen."""
        if series is None:
            return None
        weights = self.weights(series.time_ns)
        if not self._seen(weights):
            return None
        inside = series.value[weights > 0]
        return float(inside.max() if largest else inside.min())

    def folded(self, kind: type[ReportPart], sampled: Mapping[str, Series]) -> dict[str, Any]:
        """Return by name the figures of `kind` that fold what is sampled, as each declares."""
        return {each.attribute: self._folded(each, sampled) for each in figures_of(kind) if each.fold}

    def _folded(self, figure: Figure, sampled: Mapping[str, Series]) -> float | int | None:
        if figure.fold == "counter":
            return self.per_second(self.growth(sampled.get(figure.sampled.removesuffix("_per_s"))))
        gauge = sampled.get(figure.sampled)
        if figure.name.endswith("_mean"):
            return self.mean(gauge)
        found = self.extreme(gauge, figure.is_largest)
        return found if found is None or figure.unit != "bytes" else int(found)

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

    def change(self, gauge: Series | None, born_ns: int, gone_ns: int | None) -> float | None:
        """A gauge's last sample within the measured time less its first, of what lived from `born_ns` on.

        No line is drawn to samples outside: what start-up took would be charged to the steps. None where
        the two are not far enough apart to stand for the time that it lived.
        """
        if gauge is None or not self.length_ns:
            return None
        begin, end = max(int(self._time.starts[0]), born_ns), int(self._time.ends[-1])
        if gone_ns is not None:
            end = min(end, gone_ns)
        first, behind = np.searchsorted(gauge.time_ns, [begin, end + 1])
        if behind - first < 2 or gauge.time_ns[behind - 1] - gauge.time_ns[first] < _SEEN * (end - begin):
            return None
        return float(gauge.value[behind - 1] - gauge.value[first])

    def in_the_middle(self, settings: Sequence[tuple[int, frozenset[int]]]) -> list[int] | None:
        """What a setting, sampled when it changed, was in the middle of it; None without samples."""
        since = [own for time_ns, own in settings if time_ns <= self.middle_ns]
        return sorted(since[-1] if since else settings[0][1]) if settings else None

    def seen(self, begin_ns: int, end_ns: int) -> bool:
        """Whether enough of it lies between for a largest value; so it is where no time is measured."""
        within_ns = self._time.within(np.array([begin_ns]), np.array([end_ns]))[0]
        return float(within_ns) >= _SEEN * self.length_ns

    def _seen(self, weights: Floats) -> bool:
        return bool(self.length_ns) and float(weights.sum()) >= _SEEN * self.length_ns

    def per_second(self, amount: float | None) -> float | None:
        """`amount` over the measured time, per second."""
        return None if amount is None or not self.length_ns else amount / (self.length_ns / 1e9)


def cpu_percent(rank: Rank, kept: StepTable) -> float | None:
    """Compute the CPU of the rank's processes over the measured steps, in percent of one core."""
    if not len(kept):
        return None
    start, end = int(kept["start_ns"][0]), int(kept["end_ns"][-1])
    used = 0.0
    for process in rank.processes:
        ticks = process.of_type(Tick)
        if len(ticks) < 2:
            return None
        times = process.clock.times_to_session_ns([tick.clock[0] for tick in ticks]) - start
        cpu = np.array([tick.cpu_ns for tick in ticks])
        used += float(np.interp(end - start, times, cpu) - np.interp(0, times, cpu))
    return 100 * used / (end - start)


def lifelong(counter: Series, start_ns: int, last_ns: int) -> Series:
    """Extend a process's counter from before the run to `last_ns`: 0 first, then its last value."""
    begin = min(start_ns, int(counter.time_ns[0]))
    end = max(last_ns, int(counter.time_ns[-1]))
    return Series(
        np.concatenate(([begin - LONG_NS, begin], counter.time_ns, [end])),
        np.concatenate(([0.0, 0.0], counter.value, counter.value[-1:])),
    )
