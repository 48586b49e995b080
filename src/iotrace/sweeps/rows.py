"""From the runs to one row a point.

Intervals of steps per second: of one run by its steps, of several runs by how they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from iotrace.analysis.compare.spread import OF_TIME, PRIOR_FREEDOM
from iotrace.analysis.resampling import T95, student_t
from iotrace.sweeps.cache import COLD, WARM
from iotrace.sweeps.grid import IN_ORDER, PERSISTENT, PREFETCH, WORKERS
from iotrace.sweeps.model import Predictor
from iotrace.sweeps.results import Ceiling, PointResult, SweepRun

_PAIRS = 3  # fewer say next to nothing of how they differ
_RUNS_OF_THEIR_OWN = 5  # runs of a point from which on their own spread is known well enough


class Spread(NamedTuple):
    """How runs of one point differ: standard deviation, as a share of the mean, and degrees of freedom."""

    deviation: float
    freedom: int


def find_spread(points: Sequence[Sequence[float]]) -> Spread | None:
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

    Two to four runs say little of their own spread: they share that of all points. One run while others
    use the CPUs says nothing of it: then it is what elapsed times differ by (analysis/compare/spread.py).
    """
    times = [run.step_ms for run in runs if run.step_ms]
    if len(times) == 1:
        return inverted(_beside_others(runs[0]) if runs[0].disturbed else runs[0].step_ci95_ms)
    spread = find_spread([times]) if len(times) >= _RUNS_OF_THEIR_OWN else common
    if not times or spread is None:
        return None
    mean_ms = sum(times) / len(times)
    half_ms = student_t(spread.freedom) * spread.deviation * mean_ms / math.sqrt(len(times))
    # A spread that reaches 0 ms bounds the rate from below alone: the fastest run gives the top.
    return inverted([max(mean_ms - half_ms, 0.0) or min(times), mean_ms + half_ms])


def _beside_others(run: SweepRun) -> list[float] | None:
    """Widen the interval of a run's step by how much another run may differ where other programs run."""
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


def pair_runs(runs: Sequence[SweepRun], params: dict[str, str]) -> list[tuple[float, float]]:
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
    logs = [math.log(own_ms / other_ms) for own_ms, other_ms in pair_runs(runs, params)]
    if len(logs) < _PAIRS:
        return None
    mean = sum(logs) / len(logs)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))
    half = student_t(len(logs) - 1, quantiles) * deviation / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


_NOISY_SPREAD_PERCENT = 10.0  # of the repeats' mean
_NOT_INPUT_BOUND = 0.05  # XProf's bound, as a share of the step
_CORES_BUSY = 0.9
_PRODUCTION_GREW = 1.25
_MEANS = ("samples_per_second", "production_ms", "raw_wait_fraction", "stall_fraction", "cpu_pct_mean")
_REPLAYED = {WORKERS, PREFETCH, IN_ORDER, PERSISTENT}  # settings whose effect the model knows


class _Shared(NamedTuple):
    """What every point is judged by."""

    ceiling: Ceiling | None
    spread: Spread | None
    base: SweepRun | None
    predictor: Predictor | None
    cores: int


def rows(
    runs: Sequence[SweepRun],
    points: Sequence[dict[str, str]],
    cores: int,
    predictor: Predictor | None = None,
) -> list[PointResult]:
    """One result a point, in the grid's order; a point without a run is ``not run``.

    `predictor` knows the run that `choose_base` names, and predicts the other points from it.
    """
    good = [run for run in runs if run.kind == "point" and run.ok]
    spread = find_spread(
        [[run.step_ms for run in good if run.params == params and run.step_ms] for params in points]
    )
    shared = _Shared(find_ceiling(runs), spread, choose_base(runs), predictor, cores)
    return [
        _row(
            params,
            [run for run in runs if run.kind == "point" and run.params == params],
            [run for run in runs if run.kind == "cold" and run.params == params],
            shared,
        )
        for params in points
    ]


def choose_base(runs: Sequence[SweepRun]) -> SweepRun | None:
    """Return the run to compare others with: of those with workers, if any, the one with the fewest."""
    usable = [
        run
        for run in runs
        if run.kind == "point" and run.ok and run.compute_ms and run.production_ms and run.workers is not None
    ]
    return min(usable, key=lambda run: (run.workers == 0, run.workers), default=None)


def _predicted(params: dict[str, str], workers: int | None, shared: _Shared) -> float | None:
    """Steps per second by the replay of the base's batches; None of itself, and of what is not replayed."""
    base, predictor = shared.base, shared.predictor
    if base is None or predictor is None or workers is None or params == base.params:
        return None
    changed = {name for name, value in params.items() if base.params.get(name) != value}
    step_ms = None if changed - _REPLAYED else predictor.step_ms({**params, WORKERS: str(workers)})
    return 1e3 / step_ms if step_ms and math.isfinite(step_ms) else None


def _stopped_by(run: SweepRun, shared: _Shared) -> str | None:
    """What keeps the point from being faster: ``compute``, ``cores``, ``storage`` or ``workers``."""
    fraction = run.raw_wait_fraction if run.stall_fraction is None else run.stall_fraction
    if fraction is None or shared.base is None:
        return None
    if fraction < _NOT_INPUT_BOUND:
        return "compute"
    if run.cpu_pct_mean is not None and run.cpu_pct_mean >= 100 * _CORES_BUSY * shared.cores:
        return "cores"
    reading = run.causes_ms.get("read", 0.0)
    grew = (run.production_ms or 0.0) > _PRODUCTION_GREW * (shared.base.production_ms or 0.0)
    if grew and reading >= max(run.causes_ms.values(), default=0.0) > 0:
        return "storage"
    return "workers"


def _row(
    params: dict[str, str],
    runs: list[SweepRun],
    cold: list[SweepRun],
    shared: _Shared,
) -> PointResult:
    good = [run for run in runs if run.ok]
    t1_ms = shared.ceiling.step_ms if shared.ceiling else None
    step_ms = _mean([run.step_ms for run in good])
    compute_ms = _mean([run.compute_ms for run in good])
    prep_stall_ms, fetch_stall_ms, why = _stalls(good, cold, t1_ms)
    failed = next((run for run in runs if not run.ok), None)
    known = [run.workers for run in good if run.workers is not None]
    workers = known[0] if known else _asked(params)
    spread_percent = _spread_percent(good)
    interval = rate_interval(good, shared.spread)
    status = "ok" if good else failed.status if failed else "not run"
    return PointResult(
        params=params,
        workers=workers,
        repeats=len(good),
        per_second=1e3 / step_ms if step_ms else None,
        ci95=interval,
        alone_ci95=alone_interval(interval, good),
        spread_pct=spread_percent,
        step_ms=step_ms,
        compute_ms=compute_ms,
        contention_ms=compute_ms - t1_ms if compute_ms is not None and t1_ms is not None else None,
        causes_ms=_mean_causes(good),
        **{name: _mean([getattr(run, name) for run in good]) for name in _MEANS},
        rss_peak_bytes=max((run.rss_peak_bytes for run in good if run.rss_peak_bytes), default=None),
        predicted_per_second=_predicted(params, workers, shared),
        stopped_by=_stopped_by(good[0], shared) if good else None,
        prep_stall_ms=prep_stall_ms,
        fetch_stall_ms=fetch_stall_ms,
        yours=any(run.own_workers == run.workers for run in good if run.own_workers is not None),
        others_cpu_fraction=max(
            (run.others_cpu_fraction for run in good if run.others_cpu_fraction is not None), default=None
        ),
        disturbed=any(run.disturbed for run in good),
        noisy=any(run.disturbed for run in good) or (spread_percent or 0.0) > _NOISY_SPREAD_PERCENT,
        ended=any(run.ended for run in good),
        status=status,
        reason=failed.reason if failed else why,
        sessions=[run.session for run in runs],
    )


def _stalls(
    points: list[SweepRun], cold: list[SweepRun], t1_ms: float | None
) -> tuple[float | None, float | None, str]:
    """T3 - T1 and T2 - T3 of DS-Analyzer, in ms a step, and why one of them is unknown.

    T1 trains from memory, T2 (`cold`) reads from storage, T3 (`points`) from the page cache. Runs whose page
    cache was not as asked do not count.
    """
    if not cold or not points:
        return None, None, ""
    t2_ms = _mean([run.step_ms for run in cold if run.ok and run.cache == COLD])
    t3_ms = _mean([run.step_ms for run in points if run.cache == WARM])
    if t3_ms is None:
        why = "prep_stall_ms and fetch_stall_ms are unknown: the data files were not in the page cache"
        return None, None, why
    prep_ms = None if t1_ms is None else t3_ms - t1_ms
    if t2_ms is not None:
        return prep_ms, t2_ms - t3_ms, ""
    failed = next((run for run in cold if not run.ok), None)
    why = "the data files stayed in the page cache" if failed is None else f"cold run: {failed.reason}"
    return prep_ms, None, f"fetch_stall_ms is unknown: {why}"


def find_ceiling(runs: Sequence[SweepRun]) -> Ceiling | None:
    """T1: the step without its wait, which in this run is the copying of batches from memory."""
    ceiling_runs = [run for run in runs if run.kind == "ceiling" and run.ok and run.compute_ms]
    t1_ms = _mean([run.compute_ms for run in ceiling_runs])
    if t1_ms is None:
        return None
    return Ceiling(
        per_second=1e3 / t1_ms,
        step_ms=t1_ms,
        ci95=alone_interval(inverted(ceiling_runs[0].compute_ci95_ms), ceiling_runs[:1]),
        session=ceiling_runs[0].session,
    )


def _spread_percent(runs: list[SweepRun]) -> float | None:
    times = [run.step_ms for run in runs if run.step_ms]
    return 100 * (max(times) - min(times)) * len(times) / sum(times) if len(times) > 1 else None


def _mean_causes(runs: list[SweepRun]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.causes_ms)
    return {name: sum(run.causes_ms.get(name, 0.0) for run in runs) / len(runs) for name in names}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _asked(params: dict[str, str]) -> int | None:
    text = params.get(WORKERS, "")
    return int(text) if text.isdigit() else None
