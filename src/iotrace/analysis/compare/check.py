"""Whether a session passes: no stage, no step is worse than in its baseline, and no condition holds.

Baselines as they are kept: one session or report, or a directory of several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from iotrace.analysis.compare.basis import Basis, basis_of, middle_of, rank_pair, same_rank
from iotrace.analysis.compare.comparison import SCHEMA_VERSION, compare
from iotrace.analysis.compare.conditions import Limit, judge
from iotrace.analysis.compare.results import Check, Comparison, Condition, Finding, StageChange
from iotrace.analysis.compare.same_work import differences
from iotrace.analysis.compare.spread import (
    busy,
    cpu_slower_pct,
    held_up_alike,
    noise_of,
    other_storage,
    prior_of,
)
from iotrace.analysis.compare.stage_changes import ERROR_OF_CORRECTION, stage_changes
from iotrace.analysis.compare.step_verdict import RUN_TO_RUN_PCT
from iotrace.analysis.compare.whole_run import grown_part
from iotrace.analysis.host.disturbance import grown_beside_others
from iotrace.analysis.results import BAD
from iotrace.analysis.rules.facts.check import CheckFacts
from iotrace.analysis.rules.model import UNKNOWN, Finding as Judged, find_all
from iotrace.errors import SessionError, UsageError, replacing, writing
from iotrace.session import names
from iotrace.session.listing import sessions_in

_WORTH_FAILING = 0.01  # of what a sample costs in all
_OF_COMPARISON = ("comparable", "step_ms", "change_pct", "ci95_pct", "causes_ms", "changed")
_ANOTHER = "choose another --save-baseline FILE"
_MOSTLY = 0.6  # of a growth: what one file has of a stage's, or stages of the step's, to be named for it


def check(
    reports: Sequence[Any],
    baselines: Sequence[Basis],
    limits: Sequence[Limit],
    worse_by_pct: float,
    anyway: bool = False,
    before: str = "baseline",
) -> Check:
    """Judge the reports of one or more runs, as plain data, against baselines and the conditions.

    `before` is what sentences call a baseline.

    Raises:
        SessionError: a session or baseline cannot be judged, or they did different work.
    """
    sessions = [basis_of(report) for report in reports]
    found = [each for session in sessions for each in _failed(session, len(sessions) > 1)]
    comparison, about = None, CheckFacts()
    if not found:
        _refuse("session", sessions)
        _refuse("baseline", baselines)
        if baselines:
            comparison = _compared(baselines, sessions, anyway)
            about = _about(comparison, baselines, sessions, worse_by_pct, before)
            found = [*_judged(comparison, about, baselines, sessions)]
    conditions = [_of_most([judge(limit, report) for report in reports]) for limit in limits]
    for item in conditions:
        found += [(item.condition, each) for each in find_all("check", CheckFacts(condition=item))]
    told = [(each.level, Finding(what=what, text=each.text, code=each.rule)) for what, each in found]
    worse = [each for level, each in told if level != UNKNOWN]
    untold = [each for level, each in told if level == UNKNOWN]
    warnings = [*_warnings("session", sessions), *_warnings("baseline", baselines)]
    return Check(
        schema_version=SCHEMA_VERSION,
        ok=not worse,
        text=_text(worse, untold, [item.condition for item in conditions], bool(baselines)),
        worse=worse,
        untold=untold,
        conditions=conditions,
        session=(middle_of(sessions) if comparison else sessions[0]).path,
        baseline=middle_of(baselines).path if comparison else baselines[0].path if baselines else None,
        **{field: getattr(comparison, field, None) for field in _OF_COMPARISON},
        comparison=comparison,
        sessions=[session.path for session in sessions],
        baselines=[baseline.path for baseline in baselines],
        finds_pct=None if comparison is None else _found_from(comparison.stages, about),
        warnings=[each.text for each in warnings],
        warning_codes=[each.rule for each in warnings],
    )


def _warnings(name: str, sides: Sequence[Basis]) -> Iterator[Judged]:
    """Warn of sessions that were measured beside other programs, or whose figures say little."""
    for side in sides:
        trust = side.verdict.trust
        distrusted = next(iter(trust.reasons), "its figures say little") if trust.level == BAD else ""
        facts = CheckFacts(side=f"{name} {side.path}", side_busy=busy(side), side_distrusted=distrusted)
        yield from find_all("check", facts)


def _of_most(found: Sequence[Condition]) -> Condition:
    """Choose the answer that stands for several runs: a condition that holds in half of them holds."""
    return sorted(found, key=lambda item: (item.holds is not None, bool(item.holds)))[len(found) // 2]


def _failed(session: Basis, of_several: bool) -> Iterator[tuple[str, Judged]]:
    what = f"the run {session.path}" if of_several else "the run"
    for found in find_all("check", CheckFacts(failed=what, exit_code=session.session.exit_code or 0)):
        yield what, found


def _refuse(name: str, sides: Sequence[Basis]) -> None:
    for side in sides:
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


def _compared(baselines: Sequence[Basis], sessions: Sequence[Basis], anyway: bool) -> Comparison:
    """Compare the sessions in the middle of both sides, and the stages of all."""
    before, after = middle_of(baselines), middle_of(sessions)
    comparison = compare(before, after)
    if len(baselines) + len(sessions) > 2:
        chosen, _ = rank_pair(before, after)
        ranks = [[same_rank(side, chosen) for side in sides] for sides in (baselines, sessions)]
        comparison = replace(
            comparison,
            stages=stage_changes(ranks[0], ranks[1]),
            cpu_slower_pct=cpu_slower_pct(ranks[0], ranks[1]),
        )
    for side in [*baselines, *sessions]:
        reference = after if side in baselines else before
        differs = list(differences(reference, side, rank_pair(reference, side)))
        if differs and not anyway:
            names = ("session", "baseline") if side in baselines else ("baseline", "session")
            raise SessionError(
                f"the {names[1]} {side.path} did different work ({' / '.join(names)}): {'; '.join(differs)}",
                "--anyway compares them all the same",
            )
    return comparison


def _about(
    comparison: Comparison,
    baselines: Sequence[Basis],
    sessions: Sequence[Basis],
    worse_by_pct: float,
    before: str,
) -> CheckFacts:
    """Gather what is behind all that grew: how many runs there are, and what the machine did to them."""
    hosts = [rank.system.host for side in (*baselines, *sessions) for rank in side.ranks]
    return CheckFacts(
        worse_by_pct=worse_by_pct,
        before=before,
        baselines=len(baselines),
        sessions=len(sessions),
        others=None if held_up_alike(baselines, sessions) else _doubt(baselines, sessions, before),
        beside_others_pct={clock: 100 * grown_beside_others(hosts, clock) for clock in ("cpu", "wall")},
        storage=other_storage(rank_pair(middle_of(baselines), middle_of(sessions))),
        cpu_slower_pct=max(comparison.cpu_slower_pct or 0.0, 0.0),
        correction_error=ERROR_OF_CORRECTION,
    )


def _found_from(stages: Sequence[StageChange], about: CheckFacts) -> float | None:
    """Return from which growth on, in percent, the costliest stage is worse, for certain; None: from none."""
    if not stages or (stages[0].stage == "read" and about.storage):
        return None
    by_others = about.beside_others_pct.get(stages[0].clock, 0.0)
    beside = by_others if about.others and not stages[0].quiet else 0.0
    return max(about.worse_by_pct, stages[0].noise_pct, beside)


def _judged(
    comparison: Comparison, about: CheckFacts, baselines: Sequence[Basis], sessions: Sequence[Basis]
) -> Iterator[tuple[str, Judged]]:
    """Judge what grew, each with its name: what is worse for certain, and what the machine leaves unclear."""
    worse_by_pct = about.worse_by_pct
    found: list[tuple[str, Judged]] = []

    def judge_one(what: str, **grown: Any) -> None:
        found.extend((what, each) for each in find_all("check", replace(about, **grown)))

    counted = {change.stage: change for change in _unique(_decoding_more(comparison.stages, worse_by_pct))}
    for change in _unique(_slower(comparison.stages, worse_by_pct)):
        facts = replace(about, stage=change, noise_pct=change.noise_pct)
        (slower,) = find_all("check", facts)
        if slower.level != UNKNOWN:
            counted.pop(change.stage, None)
        if change.stage not in counted:
            found.append((change.what, slower))
    for change in counted.values():
        judge_one(change.what, decodes=change)
    whole = comparison.whole_run
    if whole is not None and whole.verdict == "slower" and whole.change_pct >= worse_by_pct:
        part = grown_part(whole)
        judge_one("starting workers" if part is None else part.what, whole_run=whole, part=part)
    epoch = comparison.epoch
    if epoch is not None and epoch.verdict == "slower" and epoch.change_pct >= worse_by_pct:
        judge_one("an epoch", epoch=epoch)
    ci95_pct = comparison.ci95_pct
    change_pct, noise_pct = _step_of_all(baselines, sessions)
    if ci95_pct and change_pct >= worse_by_pct and ci95_pct[0] > RUN_TO_RUN_PCT:
        worse = [what for what, each in found if each.level != UNKNOWN]
        by_stages = _is_made_by(comparison, [each for each in comparison.stages if each.what in worse])
        judge_one("the step", step=comparison, step_pct=change_pct, noise_pct=noise_pct, by_stages=by_stages)
    elif about.others and comparison.verdict == "unknown" and all(each.level == UNKNOWN for _, each in found):
        judge_one("the step", held_up=next(filter(None, map(busy, baselines)), None))
    yield from found


def _is_made_by(comparison: Comparison, stages: Sequence[StageChange]) -> bool:
    """Whether waits for stages whose CPU time is worse for certain have most of what the step grew by."""
    waits = [
        comparison.causes_ms.get(stage) for stage in {each.stage for each in stages if each.clock == "cpu"}
    ]
    by_ms = sum(after - before for before, after in filter(None, waits))
    return by_ms >= _MOSTLY * (comparison.step_ms[1] - comparison.step_ms[0])


def _step_of_all(baselines: Sequence[Basis], sessions: Sequence[Basis]) -> tuple[float, float]:
    """Return the change of the mean step over all runs, and what 1 in 1,000 exceed by chance, in percent.

    Nothing in a step is counted, and all that a machine does is in it: its bound is wider than a stage's.
    Of one run a side, on CPUs that were steady, the bound is `RUN_TO_RUN_PCT` for the interval's lower end.
    """
    rank, _ = rank_pair(middle_of(baselines), middle_of(sessions))
    ranks = [[same_rank(side, rank) for side in sides] for sides in (baselines, sessions)]
    before, after = ([math.log(each.steps.mean_ms or 1.0) for each in side] for side in ranks)
    prior = max(RUN_TO_RUN_PCT / 100, prior_of("cpu", [*ranks[0], *ranks[1]]))
    steady = prior == RUN_TO_RUN_PCT / 100 and len(before) + len(after) == 2
    noise = 0.0 if steady else noise_of([before, after], prior).exceeded_by_1_in_1000
    return 100 * math.expm1(fmean(after) - fmean(before)), 100 * math.expm1(noise)


def _doubt(baselines: Sequence[Basis], sessions: Sequence[Basis], before: str) -> str | None:
    for name, sides in (("the session", sessions), (f"the {before}", baselines)):
        why = next(filter(None, map(busy, sides)), None)
        if why:
            return f"in {name} {why}"
    return None


class _Growth(msgspec.Struct, frozen=True):
    """A stage that grew, in one file or in all; `by` is in the same unit for all of a stage."""

    change: StageChange
    by: float


def _slower(stages: Sequence[StageChange], worse_by_pct: float) -> list[_Growth]:
    """Find what takes longer; the costs of a stage and of its files are weighed alike."""
    return [
        _Growth(change, change.cost_ms[1] - change.cost_ms[0])
        for change in stages
        if change.change_pct >= worse_by_pct and change.share * change.change_pct / 100 >= _WORTH_FAILING
    ]


def _decoding_more(stages: Sequence[StageChange], worse_by_pct: float) -> list[_Growth]:
    """Find what decodes more bytes a sample beyond chance, and not in less time for certain."""
    return [
        _Growth(change, sizes[1] - sizes[0])
        for change in stages
        if (sizes := change.decoded_bytes) is not None
        and (grown_pct := change.decoded_change_pct or 0.0) >= worse_by_pct
        and grown_pct >= (change.decoded_noise_pct or 0.0)
        and change.share * grown_pct / 100 >= _WORTH_FAILING
        and change.ci95_pct[1] >= 0
    ]


def _unique(grown: Sequence[_Growth]) -> Iterator[StageChange]:
    """Yield what got worse: a file that has most of it, else the stage over all its files."""
    for stage in dict.fromkeys(each.change.stage for each in grown):
        own = [each for each in grown if each.change.stage == stage]
        files = [each for each in own if each.change.file is not None]
        whole = next((each for each in own if each.change.file is None), None)
        most = max(files, key=lambda each: each.by, default=None)
        if whole is None:
            yield from (each.change for each in files)
        else:
            mostly = most is not None and most.by > _MOSTLY * whole.by
            yield most.change if most is not None and mostly else whole.change


def _text(worse: list[Finding], untold: list[Finding], limits: Sequence[str], compared: bool) -> str:
    """Write the first line: what it is, and what of."""
    failed = worse and all(finding.what in limits for finding in worse)
    banner = "FAILED" if failed else "WORSE" if worse else "NOT CLEAR" if untold else "NOT WORSE"
    if banner == "NOT WORSE" and not compared:
        banner = "PASSED"
    names = ", ".join(dict.fromkeys(finding.what for finding in worse or untold))
    return f"{banner}  {names}".rstrip()


def kept_at(path: Path, leave_out: Sequence[Path] = ()) -> list[Path]:
    """List the sessions and reports in a directory of several, but for those to `leave_out`; else the path.

    Raises:
        SessionError: the directory holds none.
    """
    if not path.is_dir() or (path / names.MANIFEST).exists():
        return [path]
    own = {each.resolve() for each in leave_out}
    found = [*sessions_in(path), *path.glob("*.json")]
    kept = sorted(each for each in found if each.resolve() not in own)
    if not kept:
        raise SessionError(
            f"{path} holds no baseline", f"make one with: iotrace check SESSION --save-baseline {path}/"
        )
    return kept


def save(reports: Sequence[Any], target: str) -> list[Path]:
    """Keep `reports`: into a directory, where `target` is one or ends in ``/``, else as that file.

    What is kept there stays until the new file is whole. Returns the files.

    Raises:
        UsageError: several reports, and one file.
        IotraceError: they cannot be written there.
    """
    directory = Path(target)
    if not target.endswith("/") and not directory.is_dir():
        if len(reports) > 1:
            raise UsageError(
                f"{target} would be one file for {len(reports)} sessions",
                f"name a directory: --save-baseline {target}/",
            )
        return [_save_file(directory, reports[0])]
    with writing(directory, _ANOTHER):
        directory.mkdir(parents=True, exist_ok=True)
    return [_save_file(directory / _name_of(report["session"]), report) for report in reports]


def _save_file(path: Path, report: Any) -> Path:
    with replacing(path, _ANOTHER) as file:
        file.write_bytes(msgspec.json.encode(report) + b"\n")
    return path


def _name_of(session: Any) -> str:
    """Name a report by when it was recorded, and what the session was called."""
    started_ns = session.get("started_ns") or 0
    began = datetime.fromtimestamp(started_ns // 10**9, timezone.utc)
    return f"{began:%Y%m%dT%H%M%SZ}-{Path(session['path']).name}.json"
