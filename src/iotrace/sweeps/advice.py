"""The advice: the fewest workers that are as good as the best, and why not more."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.sweeps.results import Advice, Ceiling, PointResult, SweepRun

_AS_GOOD_PERCENT = 2.0
# Wide intervals of short runs hold anything: what is further below the best is not taken for as good.
_NOISE_PERCENT = 10.0
_MOSTLY = 0.5


def advise(rows: Sequence[PointResult], ceiling: Ceiling | None, runs: Sequence[SweepRun]) -> Advice | None:
    """The fewest workers within 2 %, or within the noise, of the best; None without a point to choose."""
    usable = [row for row in rows if row.status == "ok" and row.per_second and row.workers is not None]
    if not usable:
        return None
    best = max(usable, key=_rate_of)
    chosen = min(
        (row for row in usable if _as_good(row, best)),
        key=lambda row: (row.workers, -_rate_of(row)),
    )
    return Advice(
        workers=chosen.workers,
        params=chosen.params,
        text=f"{_what(chosen, best, len(usable), ceiling)}. {_why_not_more(chosen, usable, runs)}".rstrip(),
        limited_by=_limited_by(chosen),
        within_pct_of_best=_below_percent(chosen, best),
        ci95=chosen.ci95,
    )


def _rate_of(row: PointResult) -> float:
    return row.per_second or 0.0


def _below_percent(row: PointResult, best: PointResult) -> float:
    return 100 * (1 - _rate_of(row) / _rate_of(best))


def _as_good(row: PointResult, best: PointResult) -> bool:
    if _below_percent(row, best) <= _AS_GOOD_PERCENT:
        return True
    # Within the noise: each mean lies in the other's interval. A noisy point's interval proves nothing.
    if not row.ci95 or not best.ci95 or row.noisy or best.noisy or _below_percent(row, best) > _NOISE_PERCENT:
        return False
    return row.ci95[1] >= _rate_of(best) and best.ci95[0] <= _rate_of(row)


def _limited_by(row: PointResult) -> str | None:
    """``compute``, or the largest cause of the wait that is left."""
    if row.stopped_by == "compute" or not row.causes_ms:
        return row.stopped_by
    return max(row.causes_ms, key=lambda cause: row.causes_ms[cause])


def _what(chosen: PointResult, best: PointResult, count: int, ceiling: Ceiling | None) -> str:
    named = ", ".join(f"{name}={value}" for name, value in chosen.params.items())
    spread = f" (95 % interval {chosen.ci95[0]:.3g} to {chosen.ci95[1]:.3g})" if chosen.ci95 else ""
    parts = [f"use {named}: {_rate_of(chosen):.3g} steps/s{spread}"]
    if chosen is not best:
        parts.append(f"{_below_percent(chosen, best):.1f} % below the best ({best.workers} workers)")
    elif count > 1:
        parts.append("the best of all")
    if ceiling is not None:
        reached = 100 * _rate_of(chosen) / ceiling.per_second
        parts.append(f"{reached:.0f} % of the {ceiling.per_second:.3g} that no loader can beat")
    return ", ".join(parts)


def _why_not_more(chosen: PointResult, usable: list[PointResult], runs: Sequence[SweepRun]) -> str:
    if chosen.raw_wait_fraction is None or chosen.stopped_by is None:
        return ""
    waits = f"{100 * chosen.raw_wait_fraction:.0f} % of the step"
    if chosen.stopped_by == "compute":
        return f"It waits {waits}: the rest is compute, and more workers will not help."
    more = [row for row in usable if (row.workers or 0) > (chosen.workers or 0)]
    if chosen.stopped_by == "workers" and not more:
        return f"It still waits {waits}: try more than {chosen.workers} workers."
    if chosen.stopped_by == "workers":
        reason = _contention(chosen, more)
    else:
        reasons = {"cores": "all cores are busy", "storage": "reading slows down as more workers read"}
        reason = reasons[chosen.stopped_by]
    return f"More workers will not help, as {reason}: {_wait_left(chosen, waits, runs)}."


def _contention(chosen: PointResult, more: list[PointResult]) -> str:
    """What measuring more workers showed."""
    row = min(more, key=lambda row: row.workers or 0)
    if chosen.compute_ms and row.compute_ms and row.compute_ms > chosen.compute_ms:
        slower = f"{chosen.compute_ms:.0f} to {row.compute_ms:.0f} ms of compute a step"
        return f"they take cores from the training ({slower} with {row.workers})"
    return f"{row.workers} were no faster"


def _wait_left(chosen: PointResult, waits: str, runs: Sequence[SweepRun]) -> str:
    waited_ms = sum(chosen.causes_ms.values())
    if not waited_ms:
        return f"it waits {waits}"
    cause, cause_ms = max(chosen.causes_ms.items(), key=lambda item: item[1])
    run = next(run for run in runs if run.params == chosen.params and run.ok and run.kind == "point")
    mostly = run.costly_file_ms is not None and run.costly_file_ms >= _MOSTLY * cause_ms
    of_file = f", mostly of {run.costly_file}" if mostly else ""
    return f"of the wait that is left ({waits}) {100 * cause_ms / waited_ms:.0f} % is {cause}{of_file}"
