"""What a sweep says first: the point to use, or that none is advised, and what would bring advice.

The advice in words: the chosen point, and why not more workers, where that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from iotrace.analysis.results import BAD, CAUTION, OK, Fix, Trust
from iotrace.analysis.rules.facts.sweep import ChoiceFacts, PointFacts, SweepFacts
from iotrace.analysis.rules.model import Finding, find_all
from iotrace.sweeps.apply import changes
from iotrace.sweeps.grid import WORKERS, asked_of_agent, named
from iotrace.sweeps.plan import SweepPlan
from iotrace.sweeps.results import Advice, Ceiling, Origin, PointResult, SweepRun, SweepVerdict
from iotrace.sweeps.rows import ratio_interval
from iotrace.units import counted, digits

_MOSTLY = 0.5


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
    best, why = max(usable, key=lambda row: row.rate), why_not_more(chosen, usable, runs)
    return Advice(
        workers=chosen.workers,
        params=chosen.params,
        text=f"{_what(chosen, best, len(usable), ceiling)}. {'' if why is None else why.text}".rstrip(),
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


def why_not_more(chosen: PointResult, usable: list[PointResult], runs: Sequence[SweepRun]) -> Finding | None:
    """Find what is left of the wait, and whether more workers would shorten it; None where not known."""
    fraction = chosen.raw_wait_fraction if chosen.stall_fraction is None else chosen.stall_fraction
    if fraction is None or chosen.stopped_by is None or chosen.workers is None:
        return None
    facts = PointFacts(
        workers=chosen.workers,
        wait_fraction=fraction,
        stopped_by=chosen.stopped_by,
        disturbed=chosen.disturbed,
        unmade_fraction=None if chosen.cpu_pct_mean is None else _unmade(chosen),
        compute_ms=chosen.compute_ms,
    )
    facts = msgspec.structs.replace(facts, left=_wait_left(chosen, facts.waits, runs))
    more = [row for row in usable if row.workers is not None and row.workers > chosen.workers]
    if more:
        row = min(more, key=lambda row: row.workers or 0)
        facts = msgspec.structs.replace(
            facts,
            next_workers=row.workers,
            next_is_faster=row.rate > chosen.rate * (1 + AS_GOOD_PERCENT / 100),
            next_compute_ms=None if row.noisy else row.compute_ms,
        )
    return next(iter(find_all("point", facts)), None)


def _unmade(row: PointResult) -> float:
    """The share of the wait that is for batches that were not made yet; 0 where no cause is known."""
    whole_ms = sum(row.causes_ms.values())
    others_ms = sum(row.causes_ms.get(cause, 0.0) for cause in ("startup", "sampling", "transport"))
    return 1 - others_ms / whole_ms if whole_ms else 0.0


def _wait_left(chosen: PointResult, waits: str, runs: Sequence[SweepRun]) -> str:
    waited_ms = sum(chosen.causes_ms.values())
    if not waited_ms:
        return ""
    cause, cause_ms = max(chosen.causes_ms.items(), key=lambda item: item[1])
    run = next(run for run in runs if run.params == chosen.params and run.ok and run.kind == "point")
    mostly = run.costly_file_ms is not None and run.costly_file_ms >= _MOSTLY * cause_ms
    of_file = f", mostly of {run.costly_file}" if mostly else ""
    return f"of the wait that is left ({waits}) {100 * cause_ms / waited_ms:.0f} % is {cause}{of_file}"


AS_GOOD_PERCENT = 2.0  # two points that differ by less count as equal
_REGRET_PERCENT = 10.0  # what another point may be faster than the advised one
_CEILING_PERCENT = 2.0
_ALIKE = 0.2  # of the CPUs: by how much the shares that others took of them may differ
_REPEATS = 5


class Choice(NamedTuple):
    """The point to use; without one what is in the way, with what would bring advice."""

    point: PointResult | None
    silent: Finding | None = None


def choose(rows: Sequence[PointResult], ceiling: Ceiling | None, repeats: int) -> Choice:
    """Choose the fewest workers that are as good as any other point, where the points differ clearly."""
    usable = [row for row in rows if row.gave_figures]
    again = f"--repeat {max(_REPEATS, 2 * repeats)}"
    quiet = f"run it again with fewer other programs, and {again}"
    vague = next((row for row in usable if row.ci95 is None), None)
    too_fast = max((row for row in usable if above(row, ceiling)), key=lambda row: row.rate, default=None)
    if len(usable) < 2:
        return _silent(usable, only=called(usable[0].params) if usable else "")
    if vague is not None:
        return _silent(usable, vague=called(vague.params))
    if too_fast is not None and ceiling is not None:
        figures = f"{_figures(too_fast)} steps/s against {digits(ceiling.per_second)}"
        return _silent(usable, above_ceiling=(called(too_fast.params), figures), quiet=quiet)
    compared = usable if _held_up_alike(usable) else [_alone(row) for row in usable]
    good = [
        row
        for row, own in zip(usable, compared, strict=True)
        if all(_as_good(own, other) and _is_clear(own, other) for other in compared if other is not own)
    ]
    if good:
        return Choice(min(good, key=lambda row: (row.workers or 0, -row.rate)))
    best = max(compared, key=lambda row: row.rate)
    rival = max((row for row in compared if row is not best), key=lambda row: _regret_percent(best, row))
    pair = sorted((best, rival), key=lambda row: row.workers or 0)
    names = " or ".join(called(row.params, short=row is pair[0]) for row in pair)
    figures = " against ".join(_figures(row) for row in pair)
    return _silent(usable, apart=(names, figures), quiet=quiet)


def _silent(usable: Sequence[PointResult], **known: Any) -> Choice:
    """Choose none, for the reason that a rule finds."""
    return Choice(None, find_all("choice", ChoiceFacts(points=len(usable), **known))[0])


def _held_up_alike(rows: Sequence[PointResult]) -> bool:
    """Whether others took about as much of the CPUs at all points: then these compare as measured."""
    if not any(row.disturbed for row in rows):
        return True
    shares = [row.others_cpu_fraction for row in rows if row.others_cpu_fraction is not None]
    return len(shares) == len(rows) and max(shares) - min(shares) <= _ALIKE


def _alone(row: PointResult) -> PointResult:
    """Return the point with the interval up to what it may do alone."""
    return msgspec.structs.replace(row, ci95=row.alone_ci95 or row.ci95)


def above(row: PointResult, ceiling: Ceiling | None) -> bool:
    """Whether a point is faster than its ceiling beyond both intervals: then one of both was disturbed."""
    if ceiling is None or row.ci95 is None:
        return False
    highest = ceiling.ci95[1] if ceiling.ci95 else ceiling.per_second
    return row.ci95[0] > highest * (1 + _CEILING_PERCENT / 100)


def _regret_percent(row: PointResult, other: PointResult) -> float:
    """By how many percent `other` may be faster than `row`."""
    interval = ratio_interval(other, row)
    return 100 * (interval[1] - 1) if interval else 0.0


def _as_good(row: PointResult, other: PointResult) -> bool:
    """Whether `other` is no faster than `row`, or within its interval and hardly faster."""
    interval = ratio_interval(other, row)
    if interval is None or _regret_percent(row, other) > _REGRET_PERCENT:
        return False
    return interval[0] <= 1 or 100 * (other.rate / row.rate - 1) <= AS_GOOD_PERCENT


def _is_clear(row: PointResult, other: PointResult) -> bool:
    """Whether more workers are faster for certain, where other programs held points up."""
    if not (row.disturbed or other.disturbed) or (row.workers or 0) <= (other.workers or 0):
        return True
    interval = ratio_interval(row, other)
    return interval is not None and interval[0] > 1


def called(params: dict[str, str], short: bool = False) -> str:
    """Name a point as people do: ``4 workers`` (`short`: ``4``), or by all its values."""
    if list(params) != [WORKERS]:
        return named(params)
    number = params[WORKERS]
    return number if short else counted(int(number), "worker") if number.isdigit() else named(params)


def _figures(row: PointResult, unit: str = "") -> str:
    spread = f" (95 %: {digits(row.ci95[0])} to {digits(row.ci95[1])})" if row.ci95 else ""
    return f"{digits(row.rate)}{unit}{spread}"


def make_verdict(
    choice: Choice,
    rows: Sequence[PointResult],
    ceiling: Ceiling | None,
    runs: Sequence[SweepRun],
    plan: SweepPlan,
) -> SweepVerdict:
    """Put the choice into words: the banner, why, the change to make, how far to trust it."""
    trust = _trust(rows, ceiling, runs)
    likely = any(row.disturbed for row in rows)
    if choice.point is None:
        finding = choice.silent or Finding(text="")
        remedy = Fix(id="rerun", text=finding.remedy, gain_ms_per_step=None, speedup=None)
        return SweepVerdict(
            text=f"NO ADVICE {finding.text}",
            kind="no-advice",
            why=finding.why or None,
            fixes=[remedy] if finding.remedy else [],
            trust=trust,
            code=finding.rule,
        )
    usable = [row for row in rows if row.gave_figures]
    yours = next((row for row in usable if row.yours), None)
    why = why_not_more(choice.point, usable, runs)
    return SweepVerdict(
        text=f"{'LIKELY ' if likely else ''}BEST {_best(choice.point, yours, runs)}",
        kind="best",
        likely=likely,
        why=None if why is None else why.text,
        code=None if why is None else why.rule,
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
    if doubts := find_all("sweep", collect_facts(rows, ceiling, runs)):
        return judge_trust(doubts)
    repeats = min((row.repeats for row in rows if row.status == "ok"), default=0)
    spreads = [row.spread_pct for row in rows if row.spread_pct is not None]
    facts = [f"{counted(repeats, 'run')} a point"]
    if spreads:
        facts.append(f"spread {max(spreads):.1f} %")
    if ceiling is not None:
        facts.append(f"no point above its ceiling of {digits(ceiling.per_second)}")
    return Trust(level=OK, reasons=facts)


def judge_trust(doubts: Sequence[Finding]) -> Trust:
    """Return the level of trust that the worst doubt leaves, with all of them."""
    level = BAD if any(doubt.level == BAD for doubt in doubts) else CAUTION
    return Trust(level=level, reasons=[doubt.text for doubt in doubts], codes=[each.rule for each in doubts])


def collect_facts(
    rows: Sequence[PointResult], ceiling: Ceiling | None, runs: Sequence[SweepRun]
) -> SweepFacts:
    """Sum up what doubts rest on."""
    good = [run for run in runs if run.ok and run.kind == "point"]
    usable = [row for row in rows if row.status == "ok"]
    shares = [
        run.others_cpu_fraction for run in good if run.disturbed and run.others_cpu_fraction is not None
    ]
    fastest = max((row for row in usable if above(row, ceiling)), key=lambda row: row.rate, default=None)
    return SweepFacts(
        runs=len(good),
        disturbed=sum(run.disturbed for run in good),
        taken_fraction=max(shares, default=None),
        others_unknown=any(run.others_cpu_fraction is None for run in good),
        above=None
        if fastest is None or ceiling is None
        else f"{called(fastest.params)}, {digits(fastest.rate)} steps/s against {digits(ceiling.per_second)}",
        fewest_repeats=min((row.repeats for row in usable), default=None),
        spread_pct=max((row.spread_pct for row in usable if row.spread_pct is not None), default=None),
        fewest_steps=min((run.steps for run in good), default=None),
        tracing_pct=max((run.tracing_pct for run in good if run.tracing_pct is not None), default=None),
        points=len(rows),
        missing=sum(row.status != "ok" for row in rows),
    )
