"""What a sweep says first: the point to use, or that none is advised, and what would bring advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from iotrace.analysis.results import Fix, Trust
from iotrace.sweeps.advice import why_not_more
from iotrace.sweeps.apply import changes
from iotrace.sweeps.grid import WORKERS, asked_of_agent, named
from iotrace.sweeps.intervals import ratio_interval
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import Ceiling, Origin, PointResult, SweepRun, SweepVerdict
from iotrace.units import counted, digits, percent

AS_GOOD_PERCENT = 2.0  # two points that differ by less are taken for alike
_REGRET_PERCENT = 10.0  # what another point may be faster than the advised one
_CEILING_PERCENT = 2.0
_FEW_STEPS = 20
_TRACING_PERCENT = 2.0
_SPREAD_PERCENT = 10.0
_REPEATS = 5


class Choice(NamedTuple):
    """The point to use; without one what is in the way, the figures of it, and what would bring advice."""

    point: PointResult | None
    silent: str = ""
    why: str | None = None
    remedy: str = ""


def choose(rows: Sequence[PointResult], ceiling: Ceiling | None, repeats: int) -> Choice:
    """Choose the fewest workers that are as good as any other point, where the points can be told apart."""
    usable = [row for row in rows if row.gave_figures]
    again = f"--repeat {max(_REPEATS, 2 * repeats)}"
    quiet = f"run it again on a quiet machine, with {again}"
    if not usable:
        return Choice(None, "no point gave figures")
    if len(usable) == 1:
        which = f"{called(usable[0].params)} alone gave figures: there is nothing to compare them with"
        return Choice(None, which, None, "sweep two values or more: --workers 1,2,4")
    if vague := [row for row in usable if row.ci95 is None]:
        few = f"{called(vague[0].params)}: too few steps for a 95 % interval"
        return Choice(None, few, None, "more steps, such as --steps 50")
    if busy := [row for row in usable if row.disturbed]:
        what = f"other programs took the CPUs at {len(busy)} of {counted(len(usable), 'point')}"
        share = max(row.others_cpu_fraction or 0.0 for row in busy)
        why = f"they used up to {percent(share)} of the CPUs" if share else None
        return Choice(None, what, why, quiet)
    if too_fast := [row for row in usable if above(row, ceiling)]:
        row = max(too_fast, key=lambda row: row.rate)
        assert ceiling is not None
        what = f"{called(row.params)} are faster than the ceiling, which no loader can beat"
        why = f"{_figures(row)} steps/s against {digits(ceiling.per_second)}: one of both was disturbed"
        return Choice(None, what, why, quiet)
    good = [row for row in usable if all(_as_good(row, other) for other in usable if other is not row)]
    if good:
        return Choice(min(good, key=lambda row: (row.workers or 0, -row.rate)))
    best = max(usable, key=lambda row: row.rate)
    rival = max((row for row in usable if row is not best), key=lambda row: _regret_percent(best, row))
    pair = sorted((best, rival), key=lambda row: row.workers or 0)
    names = " and ".join(called(row.params, short=row is pair[0]) for row in pair)
    figures = " against ".join(_figures(row) for row in pair)
    return Choice(None, f"{names} cannot be told apart", f"{figures} steps/s", f"{quiet}, or --steps 100")


def above(row: PointResult, ceiling: Ceiling | None) -> bool:
    """Whether a point is faster than its ceiling beyond both intervals: one of both was disturbed."""
    if ceiling is None or row.ci95 is None:
        return False
    highest = ceiling.ci95[1] if ceiling.ci95 else ceiling.per_second
    return row.ci95[0] > highest * (1 + _CEILING_PERCENT / 100)


def _regret_percent(row: PointResult, other: PointResult) -> float:
    """By how many percent `other` may be faster than `row`."""
    interval = ratio_interval(other, row)
    return 100 * (interval[1] - 1) if interval else 0.0


def _as_good(row: PointResult, other: PointResult) -> bool:
    """Whether `other` is no faster than `row`, or cannot be told from it and is hardly faster if at all."""
    interval = ratio_interval(other, row)
    if interval is None or _regret_percent(row, other) > _REGRET_PERCENT:
        return False
    return interval[0] <= 1 or 100 * (other.rate / row.rate - 1) <= AS_GOOD_PERCENT


def called(params: dict[str, str], short: bool = False) -> str:
    """Name a point as people do: ``4 workers`` (`short`: ``4``), or by all its values."""
    if list(params) != [WORKERS]:
        return named(params)
    number = params[WORKERS]
    return number if short else counted(int(number), "worker") if number.isdigit() else named(params)


def _figures(row: PointResult, unit: str = "") -> str:
    spread = f" (95 %: {digits(row.ci95[0])} to {digits(row.ci95[1])})" if row.ci95 else ""
    return f"{digits(row.rate)}{unit}{spread}"


def verdict_of(
    choice: Choice,
    rows: Sequence[PointResult],
    ceiling: Ceiling | None,
    runs: Sequence[SweepRun],
    plan: SweepPlan,
) -> SweepVerdict:
    """Put the choice into words: the banner, why, the change to make, how far to trust it."""
    trust = _trust(rows, ceiling, runs)
    if choice.point is None:
        remedy = Fix(id="rerun", text=choice.remedy, gain_ms_per_step=None, speedup=None)
        fixes = [remedy] if choice.remedy else []
        return SweepVerdict(
            text=f"NO ADVICE {choice.silent}", kind="no-advice", why=choice.why, fixes=fixes, trust=trust
        )
    usable = [row for row in rows if row.gave_figures]
    yours = next((row for row in usable if row.yours), None)
    return SweepVerdict(
        text=f"BEST {_best(choice.point, yours, runs)}",
        kind="best",
        why=why_not_more(choice.point, usable, runs) or None,
        fixes=[] if choice.point is yours else [_fix(choice.point, yours, plan, _origin(runs))],
        trust=trust,
    )


def _best(row: PointResult, yours: PointResult | None, runs: Sequence[SweepRun]) -> str:
    """Say how fast the point is, and how much faster than what the program does by itself."""
    if row is yours:
        return f"{called(row.params)}, as you have: {_figures(row, ' steps/s')}"
    interval = ratio_interval(row, yours) if yours is not None else None
    if yours is None or interval is None:
        own = next((run.own_workers for run in runs if run.own_workers is not None), None)
        unmeasured = "" if own is None else f"; your {counted(own, 'worker')} not measured"
        return f"{called(row.params)}: {_figures(row, ' steps/s')}{unmeasured}"
    ratio = f"{digits(row.rate / yours.rate)}x of your {called(yours.params, short=True)}"
    perhaps = "" if interval[0] > 1 else "perhaps "
    return (
        f"{called(row.params)}: {digits(row.rate)} steps/s, {perhaps}{ratio} "
        f"(95 %: {digits(interval[0])} to {digits(interval[1])})"
    )


def _origin(runs: Sequence[SweepRun]) -> Origin | None:
    """Where the loader comes from, with the workers that the program has by itself."""
    run = next((run for run in runs if run.ok and run.kind == "point" and run.origin), None)
    if run is None or run.origin is None or run.own_workers is None:
        return None if run is None else run.origin
    settings = {**run.origin.settings, WORKERS: str(run.own_workers)}
    return msgspec.structs.replace(run.origin, settings=settings)


def _fix(row: PointResult, yours: PointResult | None, plan: SweepPlan, origin: Origin | None) -> Fix:
    by_agent = asked_of_agent(plan.command, row.params)
    texts = []
    if by_agent:
        texts += [line for line in changes(by_agent, plan.command, origin) if line[0] not in "+-"]
    if filled := {name: value for name, value in row.params.items() if name not in by_agent}:
        texts.append(f"{named(filled)} in the command")
    saved_ms = speedup = None
    interval = ratio_interval(row, yours) if yours is not None else None
    if yours is not None and yours.step_ms and row.step_ms and interval is not None and interval[0] > 1:
        saved_ms, speedup = yours.step_ms - row.step_ms, row.rate / yours.rate
    return Fix(id="workers", text=", ".join(texts), gain_ms_per_step=saved_ms, speedup=speedup)


def _trust(rows: Sequence[PointResult], ceiling: Ceiling | None, runs: Sequence[SweepRun]) -> Trust:
    doubts = sorted(_doubts(rows, ceiling, runs), key=lambda doubt: doubt[0] != "bad")
    if doubts:
        return Trust(level=doubts[0][0], reasons=[text for _, text in doubts])
    repeats = min((row.repeats for row in rows if row.status == "ok"), default=0)
    spreads = [row.spread_pct for row in rows if row.spread_pct is not None]
    facts = [f"{counted(repeats, 'run')} a point"]
    if spreads:
        facts.append(f"spread {max(spreads):.1f} %")
    if ceiling is not None:
        facts.append(f"no point above its ceiling of {digits(ceiling.per_second)}")
    return Trust(level="ok", reasons=facts)


def _doubts(
    rows: Sequence[PointResult], ceiling: Ceiling | None, runs: Sequence[SweepRun]
) -> Iterator[tuple[str, str]]:
    good = [run for run in runs if run.ok and run.kind == "point"]
    usable = [row for row in rows if row.status == "ok"]
    if disturbed := sum(run.disturbed for run in good):
        yield "bad", f"other programs took the CPUs in {disturbed} of {counted(len(good), 'run')}"
    if any(above(row, ceiling) for row in usable):
        yield "bad", f"a point lies above the ceiling of {digits(ceiling.per_second if ceiling else 0)}"
    if any(run.others_cpu_fraction is None for run in good):
        yield "caution", "not known: whether other programs were busy"
    if any(row.repeats == 1 for row in usable):
        yield "caution", "1 run a point: how runs differ is not known"
    spreads = [row.spread_pct for row in usable if row.spread_pct is not None]
    if spreads and max(spreads) > _SPREAD_PERCENT:
        yield "caution", f"runs of one point differ by up to {max(spreads):.0f} %"
    if good and min(run.steps for run in good) < _FEW_STEPS:
        yield "caution", f"{counted(min(run.steps for run in good), 'measured step')} in a run"
    tracing = max((run.tracing_pct or 0.0 for run in good), default=0.0)
    if tracing >= _TRACING_PERCENT:
        yield "caution", f"tracing took up to {tracing:.0f} % of a step"
    if missing := sum(row.status != "ok" for row in rows):
        yield "caution", f"{missing} of {counted(len(rows), 'point')} gave no figures"
