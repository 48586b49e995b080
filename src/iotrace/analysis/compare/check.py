"""Whether a session passes: no stage, no step is worse than in its baseline, and no condition holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from iotrace.analysis.compare.basis import Basis, basis_of, rank_pair
from iotrace.analysis.compare.comparison import RUN_TO_RUN_PCT, SCHEMA_VERSION, compare
from iotrace.analysis.compare.conditions import Limit, judge
from iotrace.analysis.compare.machine import busy, other_storage
from iotrace.analysis.compare.results import Check, Comparison, Condition, Finding, StageChange
from iotrace.errors import SessionError

WORSE_BY_PCT = 5.0
_WORTH_FAILING = 0.01  # of what a sample costs in all
_MOSTLY = 0.6  # of a stage's growth: what one file has of it, to be named for it
# What other programs on the same cores add to a stage, though each is the lower quartile of many.
_BUSY_PCT = {"cpu": 30.0, "wall": 100.0}


def check(
    report: Any, baseline: Basis | None, limits: Sequence[Limit], worse_by_pct: float, anyway: bool = False
) -> Check:
    """Judge a session's report, as plain data, against its baseline and the conditions.

    Raises:
        SessionError: the session or its baseline cannot be judged, or they did different work.
    """
    now = basis_of(report)
    worse = list(_failed(now))
    untold: list[Finding] = []
    comparison = None
    if not worse:
        _refuse(now, baseline)
        if baseline is not None:
            comparison = _compared(baseline, now, anyway)
            worse, untold = _judged(comparison, baseline, now, worse_by_pct)
    conditions = [judge(limit, report) for limit in limits]
    worse += [Finding(what=item.condition, text=figure_text(item)) for item in conditions if item.holds]
    untold += [
        Finding(what=item.condition, text=f"{item.condition}: the session has no such figure")
        for item in conditions
        if item.holds is None
    ]
    return Check(
        schema_version=SCHEMA_VERSION,
        ok=not worse,
        text=_text(worse, untold, [item.condition for item in conditions], baseline is not None),
        worse=worse,
        untold=untold,
        conditions=conditions,
        session=now.path,
        baseline=None if baseline is None else baseline.path,
        comparable=None if comparison is None else comparison.comparable,
        step_ms=None if comparison is None else comparison.step_ms,
        change_pct=None if comparison is None else comparison.change_pct,
        ci95_pct=None if comparison is None else comparison.ci95_pct,
        causes_ms=None if comparison is None else comparison.causes_ms,
        changed=None if comparison is None else comparison.changed,
        comparison=comparison,
    )


def _failed(now: Basis) -> Iterator[Finding]:
    if now.session.exit_code:
        yield Finding(what="the run", text=f"the run failed: exit code {now.session.exit_code}")


def _refuse(now: Basis, baseline: Basis | None) -> None:
    for name, side in (("session", now), ("baseline", baseline)):
        if side is None:
            continue
        if side.session.state == "running":
            raise SessionError(f"the {name} {side.path} is still running", "check it when it has ended")
        if not side.session.ended:
            raise SessionError(
                f"the end of the {name} {side.path} was not seen: {side.session.state}", "take one that ended"
            )
        if side.session.exit_code:
            raise SessionError(
                f"the {name} {side.path} failed: exit code {side.session.exit_code}", "take one that passed"
            )
        if not any(rank.steps.count for rank in side.ranks):
            raise SessionError(f"the {name} {side.path} has no measured steps", "run it longer")


def _compared(baseline: Basis, now: Basis, anyway: bool) -> Comparison:
    comparison = compare(baseline, now)
    if not comparison.comparable and not anyway:
        raise SessionError(
            f"the baseline did different work: {'; '.join(comparison.differs)}",
            "compare them nevertheless with --anyway",
        )
    return comparison


def figure_text(item: Condition) -> str:
    """Say what the figure of a condition is."""
    where = (item.where or "").replace("ranks[", "rank ", 1).replace("].", ": ", 1)
    return f"{where} is {_figure(item.where or '', item.value)}"


def _figure(name: str, value: float | None) -> str:
    """Write a value as its condition does: shares in percent."""
    if value is None:
        return "unknown"
    return f"{100 * value:.1f} %" if name.endswith("_fraction") else f"{value:.4g}"


def _judged(
    comparison: Comparison, baseline: Basis, now: Basis, worse_by_pct: float
) -> tuple[list[Finding], list[Finding]]:
    """Sort what grew into what is worse for certain, and what the machine does not let tell."""
    doubt = _doubt(baseline, now)
    cold = other_storage(rank_pair(baseline, now))
    worse, untold = [], []
    for change in _told_once(comparison.stages, worse_by_pct):
        why = None if change.quiet or change.change_pct >= _BUSY_PCT[change.clock] else doubt
        if change.stage == "read" and cold:
            why = cold
        text = f"{change.what}: {_percents(change.change_pct, change.ci95_pct)}, {_costs(change)}"
        if why:
            untold.append(Finding(what=change.what, text=f"{text}: cannot be told, as {why}"))
        else:
            worse.append(Finding(what=change.what, text=text))
    ci95_pct = comparison.ci95_pct
    if ci95_pct and comparison.change_pct >= worse_by_pct and ci95_pct[0] > RUN_TO_RUN_PCT:
        text = f"the step: {_percents(comparison.change_pct, ci95_pct)}{_because(comparison)}"
        if doubt or cold:
            untold.append(Finding(what="the step", text=f"{text}: cannot be told, as {doubt or cold}"))
        else:
            worse.append(Finding(what="the step", text=text))
    elif busy(baseline) and not worse:
        # A baseline that was held up hides what got slower.
        text = f"the step: cannot be told, as in the baseline {busy(baseline)}"
        untold.append(Finding(what="the step", text=text))
    return worse, untold


def _doubt(baseline: Basis, now: Basis) -> str | None:
    for name, side in (("the session", now), ("the baseline", baseline)):
        why = busy(side)
        if why:
            return f"in {name} {why}"
    return None


def _told_once(stages: Sequence[StageChange], worse_by_pct: float) -> Iterator[StageChange]:
    """Yield what got worse: a file that has most of it, else the stage over all its files."""
    grown = [
        change
        for change in stages
        if change.change_pct >= worse_by_pct
        and change.ci95_pct[0] > 0
        and change.share * change.change_pct / 100 >= _WORTH_FAILING
    ]
    for stage in dict.fromkeys(change.stage for change in grown):
        own = [change for change in grown if change.stage == stage]
        files = [change for change in own if change.file is not None]
        whole = next((change for change in own if change.file is None), None)
        most = max(files, key=_grew_ms, default=None)
        if whole is None:
            yield from files
        else:
            yield most if most is not None and _grew_ms(most) > _MOSTLY * _grew_ms(whole) else whole


def _grew_ms(change: StageChange) -> float:
    """How much more a sample costs; the costs of a stage and of its files are weighed alike."""
    return change.cost_ms[1] - change.cost_ms[0]


def _because(comparison: Comparison) -> str:
    """Name what made the step longer: the part that grew most, and the settings that differ."""
    grew = next((change for change in comparison.changed if change.by_ms > 0), None)
    reasons = [f"{grew.what} +{grew.by_ms:.1f} ms"] if grew is not None else []
    reasons += [f"{item.what} {item.values[0]} -> {item.values[1]}" for item in comparison.settings]
    return f": {', '.join(reasons)}" if reasons else ""


def _costs(change: StageChange) -> str:
    before, after = change.cost_ms
    clock = "CPU" if change.clock == "cpu" else "time"
    return f"{before:.3g} -> {after:.3g} ms of {clock} a sample"


def _percents(change_pct: float, ci95_pct: Sequence[float]) -> str:
    return f"{change_pct:+.1f} % (95 %: {ci95_pct[0]:+.1f} to {ci95_pct[1]:+.1f})"


def _text(worse: list[Finding], untold: list[Finding], limits: Sequence[str], compared: bool) -> str:
    """Write the first line: what it is, and what of."""
    failed = worse and all(finding.what in limits for finding in worse)
    banner = "FAILED" if failed else "WORSE" if worse else "CANNOT BE TOLD" if untold else "NOT WORSE"
    if banner == "NOT WORSE" and not compared:
        banner = "PASSED"
    names = ", ".join(dict.fromkeys(finding.what for finding in worse or untold))
    return f"{banner}  {names}".rstrip()
