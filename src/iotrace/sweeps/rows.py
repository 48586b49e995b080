"""From the runs to one row a point."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.sweeps.grid import WORKERS
from iotrace.sweeps.model import Model, model_of, stopped_by
from iotrace.sweeps.results import Ceiling, PointResult, Run
from iotrace.sweeps.statistics import rate_interval

_NOISY_SPREAD = 0.1  # of the repeats' mean
_NOISY_OTHERS_PERCENT = 20.0  # of one core, used by everything else on the machine


def rows(runs: Sequence[Run], points: Sequence[dict[str, str]], cores: int) -> list[PointResult]:
    """One result a point, in the grid's order; a point without a run is ``not run``."""
    ceiling = ceiling_of(runs)
    model = model_of([run for run in runs if run.kind == "point"], cores)
    return [
        _row(
            params,
            [run for run in runs if run.kind == "point" and run.params == params],
            [run for run in runs if run.kind == "cold" and run.params == params and run.ok],
            model,
            ceiling,
        )
        for params in points
    ]


def _row(
    params: dict[str, str], runs: list[Run], cold: list[Run], model: Model | None, ceiling: Ceiling | None
) -> PointResult:
    good = [run for run in runs if run.ok]
    step_ms = _mean([run.step_ms for run in good])
    compute_ms = _mean([run.compute_ms for run in good])
    cold_ms = _mean([run.step_ms for run in cold])
    failed = next((run for run in runs if not run.ok), None)
    workers = good[0].workers if good else _asked(params)
    t1_ms = ceiling.step_ms if ceiling else None
    status = "ok" if good else failed.status if failed else "not run"
    return PointResult(
        params=params,
        workers=workers,
        repeats=len(good),
        per_second=1e3 / step_ms if step_ms else None,
        ci95=_interval(good),
        samples_per_second=_mean([run.samples_per_second for run in good]),
        step_ms=step_ms,
        compute_ms=compute_ms,
        contention_ms=compute_ms - t1_ms if compute_ms is not None and t1_ms is not None else None,
        production_ms=_mean([run.production_ms for run in good]),
        raw_wait_fraction=_mean([run.raw_wait_fraction for run in good]),
        causes_ms=_mean_causes(good),
        cpu_pct_mean=_mean([run.cpu_pct_mean for run in good]),
        rss_peak_bytes=max((run.rss_peak_bytes for run in good if run.rss_peak_bytes), default=None),
        predicted_per_second=model.per_second(workers) if model and workers is not None else None,
        stopped_by=stopped_by(good[0], model) if good and model else None,
        prep_stall_ms=step_ms - t1_ms if step_ms and t1_ms and cold else None,
        fetch_stall_ms=cold_ms - step_ms if cold_ms and step_ms else None,
        noisy=_noisy(good),
        ended=any(run.ended for run in good),
        status=status,
        reason=failed.reason if failed else "",
        sessions=[run.session for run in runs],
    )


def ceiling_of(runs: Sequence[Run]) -> Ceiling | None:
    """T1: the step without its wait, which in this run is the copying of batches from memory."""
    found = [run for run in runs if run.kind == "ceiling" and run.ok and run.compute_ms]
    t1_ms = _mean([run.compute_ms for run in found])
    if t1_ms is None:
        return None
    interval = rate_interval([run.compute_ms for run in found if run.compute_ms]) if len(found) > 1 else None
    return Ceiling(per_second=1e3 / t1_ms, step_ms=t1_ms, ci95=interval, session=found[0].session)


def _interval(runs: list[Run]) -> list[float] | None:
    """Over the repeats; of a single run over its blocks of steps."""
    if len(runs) == 1:
        return rate_interval(runs[0].block_ms)
    return rate_interval([run.step_ms for run in runs if run.step_ms])


def _noisy(runs: list[Run]) -> bool:
    if any((run.others_pct or 0.0) > _NOISY_OTHERS_PERCENT for run in runs):
        return True
    times = [run.step_ms for run in runs if run.step_ms]
    return len(times) > 1 and (max(times) - min(times)) > _NOISY_SPREAD * sum(times) / len(times)


def _mean_causes(runs: list[Run]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run.causes_ms)
    return {name: sum(run.causes_ms.get(name, 0.0) for run in runs) / len(runs) for name in names}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _asked(params: dict[str, str]) -> int | None:
    text = params.get(WORKERS, "")
    return int(text) if text.isdigit() else None
