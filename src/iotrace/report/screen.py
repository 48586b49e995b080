"""The first screen of a report: verdict, why, fix, trust; then the figures behind them, and what next."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence

from iotrace.analysis.host.disturbance import OTHER_PROGRAMS, may_be_all_of_wait
from iotrace.analysis.results import START_UP, RankReport, Report, SessionInfo, commands_of
from iotrace.analysis.verdict.failed import last_hang
from iotrace.analysis.verdict.reason import lies_ready
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT
from iotrace.report.blocks import Block, Document, Facts, Head, Line, Paragraph
from iotrace.report.screen_ranks import ranks_parts
from iotrace.report.words import (
    device_facts,
    file_facts,
    forecast_texts,
    gain_text,
    hang_text,
    loop_facts,
    other_wait_text,
    pace_texts,
    part_not_captured,
    run_facts,
    slow_facts,
    start_facts,
    step_parts_ms,
)
from iotrace.session.liveness import KILLED, UNKNOWN
from iotrace.units import milliseconds

WANT_A_FIX = ("input-bound", "moderately-input-bound", "rank-late", "device-idle", "communication-bound")
_ELSE = "-v has loader, system and I/O"
_OF_OPERATORS = "IO068"  # memory by operator was not recorded: nobody misses it on a first screen
_MOST_FIXES = 3  # and reasons for trust
_MANY_STEPS = 2000  # more than one wants to scroll through in a browser
_LONG_START_NS = 5_000_000_000
_MOST_CAUSES = 5
_MOST_ALIKE = 3  # of parts that many ranks lack
_LEAST_MS = 0.05  # what is shown as 0.0
_MUCH = 0.05  # of the loop
_TONES = {
    "not-input-bound": "good",
    "device-busy": "good",
    **dict.fromkeys(("moderately-input-bound", "wait-unknown", "running"), "warn"),
}


def head_of(report: Report, more: str = "", most: int | None = None, stacks_shown: bool = False) -> Head:
    """Say the verdict over the job, why, what to do, and how far to trust that; `more` to see without a fix.

    A short one has the first `most` fixes that gain much, and reasons for its trust. `stacks_shown`: it need
    not say where stacks of a hang lie.
    """
    found = report.verdict
    lines = [Line("Why", found.why)] if found.why else []
    lines += [Line("", found.beside)] if found.beside else []
    lines += [Line(label, text) for label, text in ending(report, stacks_shown)]
    fixes = [fix for fix in found.fixes if most is None or not fix.is_minor]
    for number, fix in enumerate(fixes[:most]):
        text = f"{fix.joins} {fix.text}" if number else fix.text
        label = "" if number else "Fix"
        note = other_wait_text(fix) if most is None else ""
        lines.append(Line(label, text, gain_text(fix), note, fix.command))
    if most is not None and len(fixes) > most:
        lines.append(Line("", f"{len(fixes) - most} more: -v"))
    if not found.fixes and found.kind in WANT_A_FIX and not _only_lacks_cpus(report):
        gaps = "--view gaps has the longest idle times" if found.kind == "device-idle" else _ELSE
        lines.append(Line("Fix", no_fix_text(report, more or gaps)))
    trust = trust_text(found.trust.level, found.trust.reasons, silenced(report), most)
    return Head(_TONES.get(found.kind, "bad"), found.banner, found.said, lines, found.trust.level, trust)


def screen_of(report: Report, width: int) -> Document:
    """Say the verdict over the job, then the figures of the rank that it is about, or of all ranks."""
    several, rank = len(report.ranks) > 1, report.main_rank
    blocks: list[Block] = []
    if rank is not None and several:
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        command = commands_of(report.ranks).get(rank.pid or 0)
        blocks.append(Paragraph(f"Of {rank.called}{restart}{f' ({command})' if command else ''}:"))
    if rank is not None:
        blocks += fact_rows(rank, report.verdict.why)
    blocks += [Line("Soon", text) for text in forecast_texts(report.forecasts)]
    missing = [part_not_captured(item.what) for item in report.not_captured if item.code != _OF_OPERATORS]
    if missing:
        what = ", ".join(_summed(dict.fromkeys(missing)))
        blocks.append(Paragraph(f"Not captured: {what}; -v says why"))
    ranks = ranks_parts(report, width) if several else []
    return Document(head_of(report, most=_MOST_FIXES), [*ranks, blocks])


def ending(report: Report, stacks_shown: bool = False) -> list[tuple[str, str]]:
    """What held before a run failed, or why nobody knows how it ended; nothing of other runs."""
    session = report.session
    rows = _last_hang_rows(session)[: 1 if stacks_shown else None]
    if report.verdict.until:
        return [*rows, ("Until then", report.verdict.until)]
    if session.state == KILLED:
        return [*rows, ("End", "unknown, because iotrace run was killed before the program ended")]
    if session.state == UNKNOWN:
        return [*rows, ("End", f"unknown: only {session.host or 'its host'} can tell whether it still runs")]
    return rows


def _last_hang_rows(session: SessionInfo) -> list[tuple[str, str]]:
    """Say the hang that the run was in last, and where stacks of it lie; nothing where it went on."""
    hang = last_hang(session)
    if hang is None:
        return []
    found = [each.stacks for each in hang.processes if each.stacks]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    stacks = [("", f"Python stacks: {shown_path(found[0])}{more}")] if found else []
    return [("Hang", hang_text(hang)), *stacks]


def _only_lacks_cpus(report: Report) -> bool:
    """Whether the verdict is about batches that lie ready while the CPUs are busy: no fix is due."""
    rank = report.main_rank
    return rank is not None and report.verdict.cause == "transport" and lies_ready(rank)


def no_fix_text(report: Report, more: str) -> str:
    """Say that no fix is known, and where there is `more` to see; of bare traces what would tell."""
    if not report.session.argv and report.verdict.kind != "device-idle":
        return "not known from a trace alone; iotrace run -- CMD also records workers, files and causes"
    rank = report.main_rank
    # Others do not matter where the loop would wait all the same.
    is_reason = rank is None or not rank.data_wait.raw_ms or may_be_all_of_wait(rank, KEPT_UP_PERCENT)
    if OTHER_PROGRAMS in report.verdict.trust.codes and is_reason:
        more = f"repeat on a quiet machine; {more}"
    return f"iotrace knows no fix for it; {more}"


def _summed(parts: Iterable[str]) -> list[str]:
    """Make one of what many ranks lack: `compute of rank 0`, `compute of rank 1` and so on."""
    found: dict[str, list[str]] = {}
    for part in parts:
        what = re.sub(r" of rank \d+$", " of # ranks", part)
        found.setdefault(what, []).append(part)
    return [
        each
        for what, own in found.items()
        for each in (own if len(own) <= _MOST_ALIKE else [what.replace("#", str(len(own)))])
    ]


def trust_text(level: str, reasons: Sequence[str], silenced: str = "", most: int | None = None) -> str:
    """What stands behind the level of trust, the first `most` reasons; `silenced`: why no gain is stated."""
    left = len(reasons) - len(reasons[:most])
    more = f"{left} more with -v" if left else ""
    told: dict[str, str] = {}
    for reason in filter(None, [*reasons[:most], more, silenced]):
        whose, named, what = reason.partition(": ")
        by_rank = named and whose.startswith(("rank ", "process "))
        if by_rank and whose in told:
            told[whose] += f", {what}"  # one rank's stand together
        else:
            told[whose if by_rank else reason] = reason
    return (", " if level == "ok" else "; ").join(told.values())


def silenced(report: Report) -> str:
    """Say that gains are known and not told, and what would tell them; empty where that is not so."""
    gains = [item.gain_ms_per_step for item in report.recommendations]
    told = [fix.gain_ms_per_step for fix in report.verdict.fixes]
    if report.verdict.trust.level != "bad" or not told or not any(gains) or any(told):
        return ""
    if any(rank.overhead is not None and rank.overhead.is_for_calls for rank in report.ranks):
        return "gain unknown"
    others = " on a quiet machine," if OTHER_PROGRAMS in report.verdict.trust.codes else ""
    again = f"repeat{others} with more steps" if report.session.argv else "trace more steps"
    return f"gain unknown: {again}"


def opened(report: Report) -> list[tuple[str, str]]:
    """The command that opens the timeline where this reader looks first."""
    path = shown_path(report.session.path)
    if report.verdict.kind == "failed" and report.session.failures:
        return [(f"iotrace open {path} --around failure", "the timeline, before it")]
    where = "" if report.verdict.kind == "wait-unknown" else ", at the worst wait"
    found = [(f"iotrace open {path}", f"the timeline{where}")]
    if sum(rank.steps.count for rank in report.ranks) >= _MANY_STEPS:
        found.append((f"iotrace merge {path} --around worst", "that part of it as a file"))
    return found


def following(report: Report, verbose: bool) -> list[tuple[str, str]]:
    """The commands that a reader of this verdict needs next, and what each shows."""
    path, found = shown_path(report.session.path), report.verdict
    if not report.session.argv:
        traces = path if len(report.ranks) == 1 else "TRACE..."
        details = [] if verbose else [(f"iotrace report -v {traces}", "breakdown, idle time, ranks compared")]
        if found.kind == "device-idle":
            details.append((f"iotrace report --view gaps {traces}", "the longest idle times, by name"))
        return [*details, ("iotrace run -- CMD", "adds workers, files and causes")]
    has_stack = any(failure.stack for failure in report.session.failures)
    shows = "message and stack" if found.banner == "FAILED" and has_stack else "loader, system, I/O"
    following = [] if verbose else [(f"iotrace report {path} -v", shows)]
    if not verbose and any(_starts_long(rank) for rank in report.ranks):
        following.append((f"iotrace report {path} --view startup", "what the start was"))
    if found.kind == "running":
        following.insert(0, (f"iotrace top {path}", "what it waits for now"))
    elif found.kind != "failed" and found.fixes:
        if any(fix.change is not None for fix in found.fixes):
            following.append((f"iotrace try {path}", "carries a fix out and measures it"))
        following.append((f"iotrace compare {path} AFTER", "when it is fixed"))
    return following


def _starts_long(rank: RankReport) -> bool:
    """Whether half of the run, and some seconds, were its start."""
    account = rank.account
    start_ns = 0 if account is None else account.part_ns(START_UP)
    return start_ns >= _LONG_START_NS and account is not None and 2 * start_ns >= account.whole_ns


def shown_path(path: str) -> str:
    """A path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path)
    return shlex.quote(relative if len(relative) < len(path) else path)


def fact_rows(rank: RankReport, why: str | None) -> list[Facts]:
    """The figures behind the verdict, whose `why` they do not repeat: the step, the wait, files, what ran.

    Only what is known.
    """
    steps = rank.steps
    rows: list[Facts] = []
    if steps.mean_ms is not None:
        few = ", few long steps" if (steps.p95_ms or 0.0) < steps.mean_ms else ""
        long = f" (p95 {steps.p95_ms:.1f}{few})" if steps.count > 1 else ""
        mean = f"{milliseconds(steps.mean_ms)}{_left_out(rank)}"
        pace = " · ".join([f"{mean}{long}", *pace_texts(rank)])
        label = "Trace" if steps.count == 1 and steps.per_second is None else "Step"
        split = " · ".join(_split(rank, steps.mean_ms))
        rows.append(Facts(label, [pace, split] if split else [pace]))
    if rank.data_wait.raw_ms:
        rows += _cause_rows(rank)
    more = {
        "Stages": _stage_facts,
        "Device": device_facts,
        "Loop": lambda rank: loop_facts(rank, why),
        "Slow": slow_facts,
        "Files": file_facts,
        "Start": start_facts,
        "Ran": run_facts,
    }
    return rows + [Facts(label, parts) for label, make in more.items() if (parts := make(rank))]


def _left_out(rank: RankReport) -> str:
    """Say that a step is without the evaluations in it, where these are much of the loop."""
    events = rank.loop_events or ()
    much = any(each.kind == "evaluation" and each.loop_fraction >= _MUCH for each in events)
    return " without validation" if much else ""


def _split(rank: RankReport, whole_ms: float) -> list[str]:
    """What a step is made of, as far as that is known: the data wait, and what the host did in the rest."""
    parts = step_parts_ms(rank)
    if parts and "other" not in parts:
        parts["rest"] = whole_ms - sum(parts.values())
    return [f"{name} {ms:.1f}" for name, ms in parts.items()]


def _stage_facts(rank: RankReport) -> list[str]:
    """Say how busy each stage is that makes the loop's items, where there are several."""
    stages = rank.pipeline if len(rank.pipeline) > 1 else []
    busy = [f"{stage.name} {min(stage.busy, stage.makers):.1f} of {stage.makers}" for stage in stages]
    return [" · ".join(busy) + " busy"] if busy else []


def _cause_rows(rank: RankReport) -> list[Facts]:
    wait = rank.data_wait
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    shown = [f"{cause} {ms:.1f}" for cause, ms in causes if ms >= _LEAST_MS][:_MOST_CAUSES]
    parts = [" · ".join(shown) or milliseconds(wait.raw_ms or 0.0)]
    if wait.exposed_ms is None:
        parts.append("unknown how long the device idled meanwhile")
    elif wait.exposed_source != "cpu":
        parts.append(f"device idle in {milliseconds(wait.exposed_ms)} of it")
    rows = [Facts("Wait", parts)]
    if len(wait.by_loader) > 1:
        names = {loader.id: loader.named for loader in rank.loaders}
        by_loader = [f"{names.get(item.loader, '?')} {item.raw_ms:.1f}" for item in wait.by_loader]
        rows.append(Facts("", ["by loader: " + " · ".join(by_loader)]))
    return rows
