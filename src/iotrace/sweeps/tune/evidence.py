"""What is not worth changing, with the evidence; what a run proves of a setting that no model speaks for."""

from __future__ import annotations

import math

from iotrace.sweeps.grid import PREFETCH
from iotrace.sweeps.model import Predictor, Seen
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.tune.candidates import Params, switches
from iotrace.sweeps.tune.results import NoEffect

AS_GOOD = 0.01  # of a step: settings that differ by less are alike; what is less simple has to gain more
_VAGUE_PERCENT = 5.0  # half of an interval: a wider one does not tell that there is no effect


def gained(run: SweepRun, before: SweepRun) -> bool:
    """Whether a run is faster than the one before, by the means alone."""
    return run.ok and bool(run.step_ms) and (run.step_ms or 0.0) < (1 - AS_GOOD) * (before.step_ms or 0.0)


def proven(run: SweepRun, before: SweepRun) -> bool:
    """Whether a run is faster than the one before beyond the intervals of both."""
    step_ms, before_ms = run.step_ms or math.inf, before.step_ms or 0.0
    return step_ms + math.hypot(_half_ms(run), _half_ms(before)) < (1 - AS_GOOD) * before_ms


def measured(change: Params, run: SweepRun, before: SweepRun) -> NoEffect | None:
    """What `change` did in `run`; None where the runs are no evidence of anything."""
    step_ms, before_ms = run.step_ms or math.inf, before.step_ms or math.inf
    half = 100 * math.hypot(_half_ms(run) / step_ms, _half_ms(before) / before_ms)
    return _of(change, 100 * (before_ms / step_ms - 1), half, "measured") if half <= _VAGUE_PERCENT else None


def predicted(predictor: Predictor, params: Params, seen: Seen) -> list[NoEffect]:
    """List each switch, and more prefetching, where the model says that it adds nothing to `params`."""
    before = predictor.step_ms(params)
    prefetch = int(params.get(PREFETCH, seen.settings.get(PREFETCH, 2)))
    found = []
    for change in [*switches(seen)[:2], {PREFETCH: str(2 * prefetch)}]:
        after = predictor.step_ms({**params, **change})
        if before is None or after is None or not after > 0 or change.items() <= params.items():
            continue
        percent = 100 * (before / after - 1)
        if abs(percent) < 100 * AS_GOOD:
            found.append(_of(change, percent, 100 * AS_GOOD, "predicted"))
    return found


def _of(change: Params, percent: float, half: float, source: str) -> NoEffect:
    knob = ", ".join(f"{name}={value}" for name, value in change.items())
    return NoEffect(knob=knob, interval_pct=[percent - half, percent + half], source=source)


def _half_ms(run: SweepRun) -> float:
    """Half of the interval of a run's step; without one it may be anything."""
    return math.inf if run.step_ci95_ms is None else (run.step_ci95_ms[1] - run.step_ci95_ms[0]) / 2
