"""The view of slow steps: those of the loop by cause, those of a trace by what they did."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import RankReport, Report, SlowLoopSteps
from iotrace.report.screen import shown_path
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.report.words import part_name, slow_text
from iotrace.units import milliseconds, one_decimal, percent, size

_LEAST_SHARE = 0.01  # of what a step took beyond the usual
_MOST_COMMANDS = 3
_SHARED = (
    Field("step", "step", absent="all"),
    Field("step_ms", "step ms", one_decimal),
    Field("over_ms", "over ms", one_decimal, absent="-"),
    Field("ms", "part ms", one_decimal),
)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a slow step did longer than the usual one; of all of them, `step` is None."""

    step: int | None
    is_first: bool
    step_ms: float
    over_ms: float | None
    part: str
    ms: float


class _LoopPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a slow step of the loop did longer than the usual one; `detail`: file, bytes, where it was."""

    step: int
    epoch: int | None
    batch: int | None
    start_s: float
    step_ms: float
    over_ms: float
    part: str
    ms: float
    detail: str | None


def slow_steps(report: Report) -> list[Table]:
    """Show the steps that took long, the first ones of a trace among them, and why."""
    traced = [rank for rank in report.ranks if rank.slow_steps or not report.session.argv]
    loop = of_ranks(report.ranks, lambda rank: _of_loop(report, rank)) if report.session.argv else []
    return [*loop, *of_ranks(traced, _of_trace)]


def _of_loop(report: Report, rank: RankReport) -> Table:
    fields = (
        *_SHARED,
        Field("part", "part", part_name, is_text=True),
        Field("detail", "where", is_text=True, absent=""),
    )
    title, found = "Slow steps of the loop, and why", rank.loop_slow_steps
    if found is None:
        why = rank.steps.unknown_why or f"fewer than 20 steps were measured: {rank.steps.count}"
        return Table(title=title, rows=[], fields=fields, unknown=why)
    limits = f"{found.beyond_ms:.1f} ms (p95 and 3 MAD); usual: {found.usual_ms:.1f}"
    if not found.count:
        return Table(title=title, rows=[], fields=fields, unknown=f"none took more than {limits}")
    notes = [
        f"slow: more than {limits}",
        slow_text(found),
        f"explained: {percent(found.explained_fraction or 0.0)} of {milliseconds(found.over_ms)}",
        *(f"{part_name(part)}: unknown: {why}" for part, why in found.unknown.items()),
    ]
    path = shown_path(report.session.path)
    commands = [f"iotrace open {path} --around {step.step}" for step in found.steps[:_MOST_COMMANDS]]
    return Table(title=title, rows=_rows(found), fields=fields, notes=notes, commands=commands)


def _rows(found: SlowLoopSteps) -> list[_LoopPart]:
    rows = []
    for step in found.steps:
        shown = {part: ms for part, ms in step.parts_ms.items() if ms >= _LEAST_SHARE * step.over_ms}
        if step.unnamed_ms >= _LEAST_SHARE * step.over_ms:
            shown["unnamed"] = step.unnamed_ms
        written = "" if step.write_bytes is None else size(step.write_bytes)
        speed = "" if step.write_mb_per_s is None else f"{step.write_mb_per_s:.0f} MB/s"
        file = ", ".join(filter(None, (step.file, written, speed)))
        where = ", ".join(f"in {name}: {ms:.1f} ms more" for name, ms in step.host_ms.items())
        details = {next(iter(step.parts_ms), ""): file or None, "unnamed": where or None}
        rows += [
            _LoopPart(
                step=step.step,
                epoch=step.epoch,
                batch=step.batch,
                start_s=step.start_s,
                step_ms=step.ms,
                over_ms=step.over_ms,
                part=part,
                ms=ms,
                detail=details.get(part),
            )
            for part, ms in shown.items()
        ]
    return rows


def _of_trace(rank: RankReport) -> Table:
    rows = [
        _Part(step=step.step, is_first=step.is_first, step_ms=step.ms, over_ms=step.over_ms, part=part, ms=ms)
        for step in rank.slow_steps
        for part, ms in [
            *sorted(step.parts_ms.items(), key=lambda pair: -pair[1]),
            *([("unnamed", step.unnamed_ms)] if step.unnamed_ms else []),
            *((f"in {name}", ms) for name, ms in step.host_ms.items()),
        ]
    ]
    why = "no step took 1.5 times the median, or fewer than 4 were traced"
    notes = ["in NAME: the host's time there itself, whichever part it belongs to"]
    title = "Slow steps, and what they paid beyond the usual"
    fields = (*_SHARED, Field("part", "part", _part, is_text=True))
    return Table(title=title, rows=rows, fields=fields, unknown=why, notes=notes if rows else [])


def _part(name: str) -> str:
    return name if name.startswith("in ") else name.replace("_", " ")
