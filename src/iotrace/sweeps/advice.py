"""The advice in words: the chosen point, and why not more workers, where that is known."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.sweeps.grid import WORKERS, named
from iotrace.sweeps.results import Advice, Ceiling, PointResult, SweepRun
from iotrace.units import counted, digits

_AS_GOOD_PERCENT = 2.0
_MOSTLY = 0.5
_UNMADE = 0.25  # of the wait: below it, more workers do not shorten it


def advise(
    chosen: PointResult | None,
    rows: Sequence[PointResult],
    ceiling: Ceiling | None,
    runs: Sequence[SweepRun],
) -> Advice | None:
    """Put the chosen point into words; None where none was chosen."""
    if chosen is None:
        return None
    usable = [row for row in rows if row.gave_figures]
    best = max(usable, key=lambda row: row.rate)
    return Advice(
        workers=chosen.workers,
        params=chosen.params,
        text=f"{_what(chosen, best, len(usable), ceiling)}. {why_not_more(chosen, usable, runs)}".rstrip(),
        limited_by=_limited_by(chosen),
        within_pct_of_best=_below_percent(chosen, best),
        ci95=chosen.ci95,
    )


def _below_percent(row: PointResult, best: PointResult) -> float:
    return 100 * (1 - row.rate / best.rate)


def _limited_by(row: PointResult) -> str | None:
    """``compute``, or the largest cause of the wait that is left."""
    if row.stopped_by == "compute" or not row.causes_ms:
        return row.stopped_by
    return max(row.causes_ms, key=lambda cause: row.causes_ms[cause])


def _what(chosen: PointResult, best: PointResult, count: int, ceiling: Ceiling | None) -> str:
    point = ", ".join(f"{name}={value}" for name, value in chosen.params.items())
    spread = f" (95 % interval {digits(chosen.ci95[0])} to {digits(chosen.ci95[1])})" if chosen.ci95 else ""
    parts = [f"use {point}: {digits(chosen.rate)} steps/s{spread}"]
    if chosen is not best:
        which = f"{best.workers} workers" if list(best.params) == [WORKERS] else named(best.params)
        parts.append(f"{_below_percent(chosen, best):.1f} % below the best ({which})")
    elif count > 1:
        parts.append("the best of all")
    reached = 100 * chosen.rate / ceiling.per_second if ceiling is not None else None
    if ceiling is not None and reached is not None and reached <= 100:  # else one of both is not right
        parts.append(f"{reached:.0f} % of the {digits(ceiling.per_second)} that no loader can beat")
    return ", ".join(parts)


def why_not_more(chosen: PointResult, usable: list[PointResult], runs: Sequence[SweepRun]) -> str:
    """Say what is left of the wait, and whether more workers would shorten it; empty where not known."""
    fraction = chosen.raw_wait_fraction if chosen.stall_fraction is None else chosen.stall_fraction
    if fraction is None or chosen.stopped_by is None or chosen.workers is None:
        return ""
    waits, most = f"{100 * fraction:.0f} % of the step", counted(chosen.workers, "worker")
    if chosen.stopped_by == "compute":
        return f"It waits {waits}: the rest is compute, and more than {most} will not help."
    more = [row for row in usable if row.workers is not None and row.workers > chosen.workers]
    if chosen.stopped_by == "workers" and not more:
        if chosen.disturbed:
            return f"It still waits {waits}: what more workers get of busy CPUs is unknown."
        if chosen.cpu_pct_mean is None or _unmade(chosen) < _UNMADE:
            return f"It still waits {waits}."
        return f"It still waits {waits}: try more than {chosen.workers} workers."
    if chosen.stopped_by == "workers":
        row = min(more, key=lambda row: row.workers or 0)
        if row.rate > chosen.rate * (1 + _AS_GOOD_PERCENT / 100):
            return f"It waits {waits}; whether {row.workers} workers are faster is not clear."
        reason = _contention(chosen, row)
    else:
        reasons = {"cores": "all cores are busy", "storage": "reading slows down as more workers read"}
        reason = reasons[chosen.stopped_by]
    return f"More than {most} will not help, as {reason}: {_wait_left(chosen, waits, runs)}."


def _unmade(row: PointResult) -> float:
    """The share of the wait that is for batches that were not made yet; 0 where no cause is known."""
    whole_ms = sum(row.causes_ms.values())
    others_ms = sum(row.causes_ms.get(cause, 0.0) for cause in ("startup", "transport"))
    return 1 - others_ms / whole_ms if whole_ms else 0.0


def _contention(chosen: PointResult, row: PointResult) -> str:
    """What measuring more workers showed."""
    grew = (row.compute_ms or 0.0) > (chosen.compute_ms or 0.0) * (1 + _AS_GOOD_PERCENT / 100)
    if chosen.compute_ms and row.compute_ms and grew and not row.noisy:
        slower = f"{chosen.compute_ms:.0f} to {row.compute_ms:.0f} ms of compute a step"
        return f"they take cores from the loop ({slower} with {row.workers})"
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
