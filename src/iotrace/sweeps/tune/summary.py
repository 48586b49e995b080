"""From a search to its result: what is best, how much better, what is not worth changing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from iotrace.analysis.results import OK, Fix, Trust
from iotrace.analysis.rules.facts.sweep import OutcomeFacts
from iotrace.analysis.rules.model import find_all
from iotrace.session.masks import masked
from iotrace.sweeps.apply import changes
from iotrace.sweeps.execute import tail
from iotrace.sweeps.grid import IN_ORDER, WORKERS, named
from iotrace.sweeps.results import Ceiling, PointResult, SweepVerdict
from iotrace.sweeps.rows import find_ceiling, paired_ratio, ratio_interval, rows
from iotrace.sweeps.tune.candidates import setting_name
from iotrace.sweeps.tune.results import SCHEMA_VERSION, Best, NoEffect, Setting, TuneResult
from iotrace.sweeps.tune.search import Search
from iotrace.sweeps.verdict import collect_facts, judge_trust
from iotrace.units import counted, digits

_LONGEST = 120  # of a program's last line
_HARDLY = 1.05  # times as fast: what is less at most is no advice


def sum_up(search: Search) -> TuneResult:
    """Sum up a search as far as it has run."""
    sweep = search.sweep
    listed = {named(run.params): run.params for run in sweep.runs if run.kind == "point"}
    points = [
        replace(row, predicted_per_second=_predicted(search, row.params))
        for row in rows(sweep.runs, list(listed.values()), sweep.cores)
    ]
    by_name = {named(row.params): row for row in points}
    own = by_name.get("")
    best_run, ceiling = search.winner, find_ceiling(sweep.runs)
    best = by_name.get(named(best_run.params)) if best_run is not None else None
    told = None if best is None or own is None else _best(search, best, own)
    no_effect = search.no_effect
    if own is not None and told is not None and (hardly := _hardly(told)) is not None:
        no_effect = [hardly, *no_effect]
        best, told = own, _best(search, own, own)
    warnings = [each for facts in _outcomes(search, best, points) for each in find_all("outcome", facts)]
    return TuneResult(
        schema_version=SCHEMA_VERSION,
        path=str(sweep.directory),
        argv=masked(sweep.plan.command),
        complete=search.complete,
        stopped=search.stopped,
        verdict=_verdict(search, own, best, told, points, ceiling),
        baseline=None if own is None else Setting(params={}, per_second=own.per_second, ci95=own.ci95),
        best=told,
        at_ceiling=search.at_ceiling,
        ceiling=ceiling,
        runs=points,
        no_effect=no_effect,
        refused=search.refused,
        warnings=[each.text for each in warnings],
        warning_codes=[each.rule for each in warnings],
    )


def _hardly(told: Best) -> NoEffect | None:
    """What the best setting does where that is next to nothing or slower; None where it is faster."""
    if told.ratio_ci95 is None or told.ratio_ci95[0] > 1 or told.ratio_ci95[1] >= _HARDLY:
        return None
    interval = [100 * (end - 1) for end in told.ratio_ci95]
    return NoEffect(knob=named(told.params), interval_pct=interval, source="measured")


def _predicted(search: Search, params: dict[str, str]) -> float | None:
    """Steps per second that the model expected before the first run of a setting; None where it did not."""
    step_ms = search.predicted.get(setting_name(params))
    return None if step_ms is None else 1e3 / step_ms


def _best(search: Search, best: PointResult, own: PointResult) -> Best:
    seen = search.seen.get("")
    ratio = best.per_second / own.per_second if best.per_second and own.per_second else None
    interval = None if best is own else ratio_interval(best, own)
    if best is not own and (paired := paired_ratio(search.sweep.runs, best.params)) is not None:
        ratio, *ends = paired
        interval = ends[0], ends[1]
    return Best(
        params=best.params,
        per_second=best.per_second,
        ci95=best.ci95,
        predicted_per_second=best.predicted_per_second,
        ratio=ratio,
        ratio_ci95=None if interval is None else list(interval),
        apply=[] if best is own else changes(best.params, search.sweep.plan.command, seen),
    )


def _verdict(
    search: Search,
    own: PointResult | None,
    best: PointResult | None,
    told: Best | None,
    points: Sequence[PointResult],
    ceiling: Ceiling | None,
) -> SweepVerdict:
    said = SweepVerdict(
        text="NO ADVICE the program was not measured",
        kind="no-advice",
        why=search.stopped,
        fixes=[],
        trust=_trust(points, search, ceiling),
    )
    if own is None or best is None or told is None or not own.per_second:
        return said
    of = ""
    if ceiling is not None and own.per_second <= ceiling.per_second:
        of = f" of {digits(ceiling.per_second)} on batches from memory"
    if best is own:
        if search.at_ceiling and search.winner is search.own:
            text = f"AT ITS CEILING as you have it: {digits(own.per_second)} steps/s{of}"
            kind = "at-ceiling"
        elif len(search.measured) < 2:
            text, kind = "NO ADVICE no other setting was measured", "no-advice"
        elif not search.complete:
            text, kind = "NO ADVICE nothing better was found before the search was cut short", "no-advice"
        else:
            text, kind = f"BEST as you have it: {digits(own.per_second)} steps/s{of}", "best"
        return replace(said, text=text, kind=kind)
    if told.ratio is None or told.ratio_ci95 is None or told.ratio_ci95[0] <= 1 or not best.per_second:
        what = f"whether {named(best.params)} is faster than yours is not clear"
        again = Fix(
            id="rerun",
            text="more --steps, with fewer other programs",
            gain_ms_per_step=None,
            speedup=None,
        )
        why = search.stopped
        if told.ratio_ci95 is not None:
            why = f"{told.ratio_ci95[0]:.2f} to {told.ratio_ci95[1]:.2f} times as fast"
        return replace(said, text=f"NO ADVICE {what}", why=why, fixes=[again])
    low, high = told.ratio_ci95
    step_ms = own.step_ms or 0.0
    fix = Fix(
        id="settings",
        text=told.apply[0],
        gain_ms_per_step=step_ms - (best.step_ms or 0.0),
        speedup=told.ratio,
        at_most=False,
        gain_interval_ms=[step_ms * (1 - 1 / each) for each in (low, high)],
        most_ms_per_step=step_ms * (1 - 1 / high),
    )
    ratio = f"{told.ratio:.2f}x of yours (95 %: {low:.2f} to {high:.2f})"
    likely = own.disturbed or best.disturbed
    banner = "LIKELY BEST" if likely else "BEST"
    text = f"{banner} {named(best.params)}: {digits(best.per_second)} steps/s, {ratio}"
    return replace(said, text=text, kind="best", fixes=[fix], likely=likely)


def _trust(points: Sequence[PointResult], search: Search, ceiling: Ceiling | None) -> Trust:
    good = [row for row in points if row.status == "ok"]
    facts = replace(
        collect_facts(points, ceiling, search.sweep.runs),
        # A search runs most settings once, and pairs of the best: a setting that failed is in its warnings.
        fewest_repeats=None,
        missing=0,
        is_proven=search.winner is search.own or max((row.repeats for row in good), default=0) > 1,
        is_whole=search.complete,
    )
    if doubts := find_all("sweep", facts):
        return judge_trust(doubts)
    return Trust(level=OK, reasons=[f"{counted(facts.runs, 'run')} of {counted(len(good), 'setting')}"])


def _outcomes(
    search: Search, best: PointResult | None, points: Sequence[PointResult]
) -> Iterator[OutcomeFacts]:
    seen = search.seen.get("")
    changed = best.params if best is not None else {}
    yield OutcomeFacts(
        iterable=seen is not None and bool(seen.iterable) and not seen.by_hand and WORKERS in changed,
        out_of_order=IN_ORDER in changed,
        not_predicted=seen.why if seen is not None and seen.pipeline is None else "",
    )
    for run in search.sweep.runs:
        if not run.ok:
            said = tail(run).split("\n") if run.status == "failed" else []
            last = next((line.strip() for line in reversed(said) if line.strip()), "")
            yield OutcomeFacts(
                failed=named(run.params) or "as it is" if run.kind == "point" else run.kind,
                status=run.status,
                reason=run.reason,
                last_line=last[:_LONGEST],
            )
    missed = [
        abs(row.per_second / row.predicted_per_second - 1)
        for row in points
        if row.per_second and row.predicted_per_second
    ]
    yield OutcomeFacts(missed_fraction=max(missed, default=None))
