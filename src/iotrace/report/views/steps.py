"""Views of steps: those before the first one, slow ones, what a change would gain."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results import (
    GainRow,
    ImportedPackage,
    ImportMount,
    PipelineStage,
    RankReport,
    Report,
    SampleCall,
    SlowLoopSteps,
    StartupPart,
)
from iotrace.analysis.results.base import figure
from iotrace.analysis.rules.startup import OWN_START, SLOW_IMPORTS
from iotrace.analysis.startup.waterfall import NOT_NAMED
from iotrace.report.blocks import Table, columns, known, of_ranks
from iotrace.report.screen import shown_path
from iotrace.report.words import part_name, slow_text
from iotrace.units import counted, milliseconds, percent, size, with_article

_NOT_SEEN = "the loop's first request was not seen"
_RECORD = "iotrace run -- CMD, with a program that asks for batches"
_MOST_PACKAGES = 15
_SHORT, _LONG = 0.005, 0.5  # s
_LEAST_SHARE = 0.01  # of what a step took beyond the usual
_MOST_COMMANDS = 3


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def startup(report: Report) -> list[Table]:
    """Show the parts of the time to the end of the first step, then the packages that were imported."""
    in_seconds = {"seconds": _seconds, "cpu_seconds": _seconds}

    def waterfall(rank: RankReport) -> Table:
        found = rank.startup
        parts = () if found is None else found.parts
        rows = [part for part in parts if part.seconds >= _SHORT or part.name == NOT_NAMED]
        return Table(
            title="From the start of the process to the end of the first step",
            rows=rows,
            fields=columns(StartupPart, at_seconds=_seconds, seconds=_seconds),
            unknown=_NOT_SEEN if found is None or found.unknown_why is None else found.unknown_why,
            remedy=_RECORD,
            notes=_startup_notes(rank, len(parts) - len(rows)),
        )

    def imports(rank: RankReport) -> Table:
        rows = rank.startup.imports if rank.startup is not None else []
        left = rows[_MOST_PACKAGES:]
        more = f"{len(left)} more packages, {sum(row.seconds for row in left):.2f} s"
        return Table(
            title="Imports by package, each without the others that it imports",
            rows=rows[:_MOST_PACKAGES],
            fields=columns(ImportedPackage, **in_seconds),
            unknown=_NOT_SEEN,
            notes=[f"{more}: --json, ranks[].startup.imports"] if left else [],
        )

    def mounts(rank: RankReport) -> Table:
        rows = rank.startup.mounts if rank.startup is not None else ()
        fields = columns(ImportMount, **in_seconds)
        return Table(title="Imports by file system", rows=rows, fields=fields, unknown=_NOT_SEEN)

    return of_ranks(report.ranks, waterfall, imports, mounts)


def _startup_notes(rank: RankReport, left: int) -> list[str]:
    """Say what is not listed, what has a name, what spawned workers cost, and who holds the start up."""
    found, notes = rank.startup, []
    if left:
        short = f"{counted(left, 'part')} below {1000 * _SHORT:.0f} ms each"
        notes.append(f"{short}: --json, ranks[].startup.parts")
    if found is not None and found.first_step_seconds is not None and found.named_fraction is not None:
        named = f"{percent(found.named_fraction)} of it has a name"
        notes.append(f"{found.first_step_seconds:.2f} s to the end of the first step; {named}")
    if found is not None and found.pickled_bytes is not None:
        notes.append(f"pickled for spawned processes: {size(found.pickled_bytes)}")
    if found is not None and (found.worker_imports_seconds or 0.0) >= _LONG:
        notes.append(f"a worker spent {found.worker_imports_seconds:.2f} s on imports of its own")
    for culprit in rank.culprits:
        if culprit.id in (SLOW_IMPORTS, OWN_START):
            notes.append(f"{culprit.text}{f': {culprit.remedy}' if culprit.remedy else ''}")
    return notes


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a slow step did longer than the usual one; of all of them, `step` is None."""

    step: Annotated[int | None, figure("its number", said="step", absent="all")]
    is_first: bool
    step_ms: Annotated[float, figure("its length", said="step ms")]
    over_ms: Annotated[float | None, figure("beyond the usual", said="over ms", absent="-")]
    part: Annotated[str, figure("what it did longer", said="part", place=1)]
    ms: Annotated[float, figure("by how much", said="part ms")]


class _LoopPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a slow step of the loop did longer than the usual one; `detail`: file, bytes, where it was."""

    step: Annotated[int, figure("its number", said="step", absent="all")]
    epoch: int | None
    batch: int | None
    start_s: float
    step_ms: Annotated[float, figure("its length", said="step ms")]
    over_ms: Annotated[float, figure("beyond the usual", said="over ms", absent="-")]
    part: Annotated[str, figure("what it did longer", said="part", place=1)]
    ms: Annotated[float, figure("by how much", said="part ms")]
    detail: Annotated[str | None, figure("file, bytes, where it was", said="where", place=1, absent="")]


def slow_steps(report: Report) -> list[Table]:
    """Show the steps that took long, the first ones of a trace among them, and why."""
    traced = [rank for rank in report.ranks if rank.slow_steps or not report.session.argv]
    loop = of_ranks(report.ranks, lambda rank: _slow_of_loop(report, rank)) if report.session.argv else []
    return [*loop, *of_ranks(traced, _slow_of_trace)]


def _slow_of_loop(report: Report, rank: RankReport) -> Table:
    found = rank.loop_slow_steps
    rows: list[_LoopPart] = []
    notes, commands = [], []
    if found is None:
        why = rank.steps.unknown_why or f"fewer than 20 steps were measured: {rank.steps.count}"
    else:
        limits = f"{found.beyond_ms:.1f} ms (p95 and 3 MAD); usual: {found.usual_ms:.1f}"
        why = f"none took more than {limits}"
    if found is not None and found.count:
        rows = _loop_parts(found)
        notes = [
            f"slow: more than {limits}",
            slow_text(found),
            f"explained: {percent(found.explained_fraction or 0.0)} of {milliseconds(found.over_ms)}",
            *(f"{part_name(part)}: unknown: {why}" for part, why in found.unknown.items()),
        ]
        path = shown_path(report.session.path)
        commands = [f"iotrace open {path} --around {step.step}" for step in found.steps[:_MOST_COMMANDS]]
    return Table(
        title="Slow steps of the loop, and why",
        rows=rows,
        fields=columns(_LoopPart, part=part_name),
        unknown=why,
        notes=notes,
        commands=commands,
    )


def _loop_parts(found: SlowLoopSteps) -> list[_LoopPart]:
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
        own = {name: getattr(step, name) for name in ("step", "epoch", "batch", "start_s", "over_ms")}
        rows += [
            _LoopPart(**own, step_ms=step.ms, part=part, ms=ms, detail=details.get(part))
            for part, ms in shown.items()
        ]
    return rows


def _slow_of_trace(rank: RankReport) -> Table:
    rows = [
        _Part(step=step.step, is_first=step.is_first, step_ms=step.ms, over_ms=step.over_ms, part=part, ms=ms)
        for step in rank.slow_steps
        for part, ms in [
            *sorted(step.parts_ms.items(), key=lambda pair: -pair[1]),
            *([("unnamed", step.unnamed_ms)] if step.unnamed_ms else []),
            *((f"in {name}", ms) for name, ms in step.host_ms.items()),
        ]
    ]
    notes = ["in NAME: the host's time there itself, whichever part it belongs to"]
    return Table(
        title="Slow steps, and what they paid beyond the usual",
        rows=rows,
        fields=columns(_Part, part=lambda name: name if name.startswith("in ") else name.replace("_", " ")),
        unknown="no step took 1.5 times the median, or fewer than 4 were traced",
        notes=notes if rows else [],
    )


class ShownGain(GainRow, frozen=True, kw_only=True):
    """A row, with the change as one reads it."""

    shown: Annotated[str, figure("the change", said="change", place=-1)]


_METADATA = "metadata: opens, closes, stats and seeks in quick succession"
_SEEN = 0.5  # of a queue's items: with fewer nobody is known to make them


def _no_stages(rank: RankReport) -> str:
    pool = next((each for each in rank.loaders if each.pool), None)
    of = with_article(pool.pool or "") if pool is not None else ""
    if pool is not None and (pool.made_fraction or 0.0) < _SEEN:
        return f"iotrace does not see who makes what the loop takes from {of}"
    if pool is not None:
        return f"the loop takes what one stage makes, from {of}: -v has its figures, under loader"
    return "the loop takes no items from queues or pools that iotrace follows"


def pipeline(report: Report) -> list[Table]:
    """Show the stages that make what the loop takes from queues and pools, the first one first."""

    def stages(rank: RankReport) -> Table:
        limits = next((stage.name for stage in rank.pipeline if stage.slowest), None)
        return known(
            Table(
                title="Stages that make the loop's items, measured steps; times in ms",
                rows=rank.pipeline,
                fields=columns(PipelineStage, busy="{:.2f}".format, before="{:.1f}".format),
                unknown=_no_stages(rank),
                notes=[] if limits is None else [f"{limits} holds the loop up"],
            )
        )

    return of_ranks(report.ranks, stages)


class _SampleCall(SampleCall, frozen=True, kw_only=True):
    """A call of a sample; `shown` is its name, moved in by its depth."""

    shown: Annotated[str, figure("its name, below the call that holds it", said="call", place=1)]


def samples(report: Report) -> list[Table]:
    """Show the calls that make a sample, each below the one that holds it."""

    def calls(rank: RankReport) -> Table:
        return Table(
            title="The calls that make a sample, over the whole run; times in ms",
            rows=[
                _SampleCall(**msgspec.structs.asdict(call), shown="  " * call.depth + call.name)
                for call in rank.sample_calls
            ],
            fields=columns(
                _SampleCall, per_sample="{:.1f}".format, ms_each="{:.3f}".format, own_ms_each="{:.3f}".format
            ),
            notes=[_METADATA] if any(call.name == "metadata" for call in rank.sample_calls) else [],
            unknown="no calls were recorded within what makes samples",
            remedy="@iotrace.region marks a function; without --io off, reads are traced",
        )

    return of_ranks(report.ranks, calls)


def gain(report: Report) -> list[Table]:
    """Show a line for each change, largest gain first; those that nothing is predicted of at the end."""
    return of_ranks(report.ranks, _gains)


def _gains(rank: RankReport) -> Table:
    rows = sorted(rank.gain, key=lambda row: (row.withheld is not None, -(row.gain_ms_per_step or 0.0)))
    step_ms = rank.steps.mean_ms
    now = "" if step_ms is None else f", of a step of {milliseconds(step_ms)}"
    notes = []
    if rank.self_prediction_error_pct is not None:
        notes.append(f"the model gives the run's own wait {rank.self_prediction_error_pct:+.1f} %")
    if rows:
        notes.append("gains do not add up; the step without a change is the measured one")
    notes += [f"? {why}" for why in dict.fromkeys(row.withheld for row in rank.gain if row.withheld)]
    return Table(
        title=f"What each change would gain{now}",
        rows=[
            ShownGain(
                **msgspec.structs.asdict(row),
                shown=row.text if row.kind == "knob" else f"{row.text} {row.change}",
            )
            for row in rows
        ],
        fields=columns(
            ShownGain,
            interval_ms=lambda pair: f"{pair[0]:.1f} - {pair[1]:.1f}",
            speedup=lambda factor: f"{factor:.2f}x",
        ),
        unknown=rank.gain_withheld or "no change is worth 5 % of a step",
        remedy="iotrace tune -- CMD measures it" if rank.steps.count and rank.loaders else "",
        notes=notes,
    )
