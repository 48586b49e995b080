"""The changes that a verdict names, with a bound of what each saves."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from iotrace.analysis.results import BAD, GONE, Fix, RankReport, Recommendation, Trust
from iotrace.analysis.rules.model import rule_of, saves_wait
from iotrace.analysis.verdict.reason import competes, trains_beside_workers
from iotrace.units import percent

_HELD_UP = 0.1  # of the step without the gain: where a bound would be wrong by as much


def fixes_of(
    recommendations: Sequence[Recommendation],
    ranks: Sequence[RankReport],
    trust: Trust,
    cause: str | None = None,
) -> list[Fix]:
    """Make one fix of each recommendation, in their order; no gain is told where the figures are not good.

    `cause` is the one that the verdict names: a fix of another says of which.
    """
    by_number: dict[int | None, RankReport] = {rank.rank: rank for rank in ranks}
    remedies = [(item.rank, item.remedy) for item in recommendations]
    fixes = []
    for item, remedy in zip(recommendations, remedies, strict=True):
        again = remedies.count(remedy) > 1 and "loader" in item.evidence
        of_loader = f"loader {item.evidence['loader']:.0f}: " if again else ""
        fixes.append(_fix(item, by_number[item.rank], cause, of_loader))
    if trust.level == BAD:
        return [replace(fix, gain_ms_per_step=None, speedup=None, gain_interval_ms=None) for fix in fixes]
    return fixes


def _fix(item: Recommendation, rank: RankReport, cause: str | None, of_loader: str) -> Fix:
    gain_ms = item.gain_ms_per_step
    is_of_run = item.code is not None and rule_of(item.code).of_run and rank.account is not None
    step_ms = rank.account.step_ms if is_of_run and rank.account is not None else rank.steps.mean_ms
    # Ending and starting workers takes time outside the wait, too; so do writing and what idles the device.
    if gain_ms is not None and saves_wait(item) and rank.data_wait.exposed_ms is not None:
        # The device works through the rest of the wait: only its idle time can be won.
        gain_ms = min(gain_ms, rank.data_wait.exposed_ms)
    speedup = None if gain_ms is None or not step_ms or gain_ms >= step_ms else step_ms / (step_ms - gain_ms)
    if item.gain_interval_ms is not None:
        at_most = any(row.id == item.gain and row.change == GONE for row in rank.gain)
    else:
        at_most = is_of_run or not (competes(rank) or _held_up(rank, gain_ms or 0.0))
    return Fix(
        id=item.fix or item.id,
        text=of_loader + item.remedy + _of_another(item, rank, cause),
        gain_ms_per_step=gain_ms,
        speedup=speedup,
        at_most=at_most,
        gain_interval_ms=item.gain_interval_ms,
        cost_ms_per_step=item.cost_ms_per_step,
        code=item.code,
        command=item.command,
    )


def _held_up(rank: RankReport, gain_ms: float) -> bool:
    """Whether a training on the CPU waited for one beside its workers: cheaper ones shorten its compute."""
    step_ms = rank.steps.mean_ms
    if not step_ms or not trains_beside_workers(rank):
        return False
    main = next((each for each in rank.system.processes if each.role == "main"), None)
    delay_pct = None if main is None else main.run_delay_pct_mean
    return delay_pct is not None and delay_pct / 100 * step_ms >= _HELD_UP * (step_ms - gain_ms)


def _of_another(item: Recommendation, rank: RankReport, cause: str | None) -> str:
    """Say which cause a fix is about, where it is not the one that the verdict names."""
    if item.id == "startup-bound" and cause != "startup":  # most of it lies outside the wait
        return f" (restarts: {item.evidence['startup_ms']:.1f} ms a step)"
    own, wait = item.id.removesuffix("-bound"), rank.data_wait
    if not wait.raw_ms or cause in (None, own) or own not in wait.causes_ms:
        return ""
    return f" ({own}: {percent(wait.causes_ms[own] / wait.raw_ms)} of the wait)"
