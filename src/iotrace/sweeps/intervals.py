"""Intervals of steps per second: of one run by its steps, of several runs by how they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from iotrace.analysis.compare.spread import OF_TIME, PRIOR_FREEDOM
from iotrace.analysis.resampling import T95, student_t
from iotrace.sweeps.results import PointResult, SweepRun

_PAIRS = 3  # fewer say next to nothing of how they differ
_RUNS_OF_THEIR_OWN = 5  # runs of a point from which on their own spread is known well enough


class Spread(NamedTuple):
    """How runs of one point differ: standard deviation, as a share of the mean, and degrees of freedom."""

    deviation: float
    freedom: int


def spread_of(points: Sequence[Sequence[float]]) -> Spread | None:
    """Find the spread that the runs of all points have in common; None where no point has two."""
    several = [times for times in points if len(times) > 1]
    freedom = sum(len(times) - 1 for times in several)
    if not freedom:
        return None
    squares = sum(
        sum((time / mean - 1) ** 2 for time in times)
        for times in several
        for mean in [sum(times) / len(times)]
    )
    return Spread(math.sqrt(squares / freedom), freedom)


def rate_interval(runs: Sequence[SweepRun], common: Spread | None) -> list[float] | None:
    """Return the 95 % interval of a point's steps per second; None where too few steps were measured.

    Two to four runs say little of their own spread: they share that of all points. One run beside other
    programs says nothing of it: it is taken to be what elapsed times differ by (analysis/compare/spread.py).
    """
    times = [run.step_ms for run in runs if run.step_ms]
    if len(times) == 1:
        return inverted(_beside_others(runs[0]) if runs[0].disturbed else runs[0].step_ci95_ms)
    spread = spread_of([times]) if len(times) >= _RUNS_OF_THEIR_OWN else common
    if not times or spread is None:
        return None
    mean_ms = sum(times) / len(times)
    half_ms = student_t(spread.freedom) * spread.deviation * mean_ms / math.sqrt(len(times))
    # A spread that reaches 0 ms bounds the rate from below alone: the fastest run stands for the top.
    return inverted([max(mean_ms - half_ms, 0.0) or min(times), mean_ms + half_ms])


def _beside_others(run: SweepRun) -> list[float] | None:
    """Widen the interval of a run's step by how much another run beside other programs may differ."""
    if run.step_ci95_ms is None or not run.step_ms:
        return None
    own = (run.step_ci95_ms[1] - run.step_ci95_ms[0]) / 2
    half_ms = math.hypot(own, student_t(PRIOR_FREEDOM) * OF_TIME * run.step_ms)
    return [run.step_ms - half_ms, run.step_ms + half_ms]


def inverted(interval_ms: Sequence[float] | None) -> list[float] | None:
    """Turn an interval of ms a step into one of steps per second."""
    if interval_ms is None or interval_ms[0] <= 0:
        return None
    return [1e3 / interval_ms[1], 1e3 / interval_ms[0]]


def alone_interval(interval: Sequence[float] | None, runs: Sequence[SweepRun]) -> list[float] | None:
    """Return an interval of steps per second up to what the runs may do with nobody else on the CPUs."""
    if interval is None:
        return None
    faster = [run.step_ms / run.least_step_ms for run in runs if run.step_ms and run.least_step_ms]
    return [interval[0], interval[1] * max(faster, default=1.0)]


def ratio_interval(row: PointResult, other: PointResult) -> tuple[float, float] | None:
    """Return the 95 % interval of how many times as fast as `other` a point is; None where one has none."""
    if not (row.per_second and other.per_second and row.ci95 and other.ci95):
        return None
    ratio = row.per_second / other.per_second
    below = math.hypot(1 - row.ci95[0] / row.per_second, other.ci95[1] / other.per_second - 1)
    above = math.hypot(row.ci95[1] / row.per_second - 1, 1 - other.ci95[0] / other.per_second)
    # Of wide intervals the ends bound the ratio more closely than what holds for narrow ones.
    low = max(ratio * (1 - below), row.ci95[0] / other.ci95[1])
    return low, min(ratio * (1 + above), row.ci95[1] / other.ci95[0])


def pairs_of(runs: Sequence[SweepRun], params: dict[str, str]) -> list[tuple[float, float]]:
    """Return what a step takes in ms in each pair: with the program's own setting, and with `params`.

    Runs of one repeat are a pair.
    """
    own, other = (
        {run.repeat: run.step_ms for run in runs if run.kind == "point" and run.ok and run.params == each}
        for each in ({}, params)
    )
    return [
        (own_ms, other_ms) for repeat, own_ms in own.items() if own_ms and (other_ms := other.get(repeat))
    ]


def paired_ratio(
    runs: Sequence[SweepRun], params: dict[str, str], quantiles: Sequence[float] = T95
) -> tuple[float, float, float] | None:
    """Return how many times as fast `params` are as the program's own setting, with the interval.

    What slows both runs of a pair does not count. Student's t, by default of 95 %, over the ratios'
    logarithms; None of fewer than three pairs.
    """
    logs = [math.log(own_ms / other_ms) for own_ms, other_ms in pairs_of(runs, params)]
    if len(logs) < _PAIRS:
        return None
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))
    half = student_t(len(logs) - 1, quantiles) * deviation / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
