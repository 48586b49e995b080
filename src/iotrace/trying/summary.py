"""What a trial says: before anything is written or run what it is about to do, after its runs its result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from iotrace.analysis.results import LIGHTER, PARQUET, UNPACKED, WIDE, Change, Report
from iotrace.patching.patch import THREADS_OF
from iotrace.session.masks import masked
from iotrace.sweeps.apply import changes
from iotrace.sweeps.grid import LOADER_ARGUMENTS, WORKERS
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.rows import pair_runs
from iotrace.trying.copies import Job
from iotrace.trying.fixes import Choice, promised_gain
from iotrace.trying.program import Program
from iotrace.trying.proof import FEWEST_PAIRS, Judgement, choose_step_time
from iotrace.trying.results import (
    FAILED,
    LOOP,
    NO_HELP,
    PROVEN,
    RUN,
    SLOWER,
    UNCLEAR,
    Gain,
    Runs,
    Setting,
    Told,
    Trial,
)
from iotrace.units import counted, size, time_span

_MOST_NAMED = 3
BANNERS = {
    PROVEN: "PROVEN",
    NO_HELP: "DOES NOT HELP",
    SLOWER: "SLOWER WITH IT",
    UNCLEAR: "NOT PROVEN",
    FAILED: "NOT TRIED",
}
_OF = {RUN: ", the whole command", LOOP: ", the whole loop"}


def describe(trial: Trial) -> str:
    """Return the first line: what came of it, the measured gain, and the gain that the report said."""
    return f"{BANNERS[trial.kind]} {describe_result(trial)}"


def describe_result(trial: Trial) -> str:
    """Return what follows the banner."""
    gain = trial.gain
    if trial.kind == FAILED or gain is None:
        return trial.why
    said, alone = f"{times(gain.median)} times as fast {_between(gain)}", trial.gain_unqueued
    if trial.kind == PROVEN:
        said = f"{times(gain.median)}x faster {_between(gain)}"
    if alone is not None:
        left = f"{times(alone.median)}x {_between(alone)} without queueing for CPUs"
        beside = f"{times(gain.median)}x {_between(gain)} as measured"
        if trial.kind == PROVEN:  # what proves it first
            said = f"faster: {beside}, {left}" if alone.low <= 1 < gain.low else f"faster: {left}, {beside}"
        else:
            said = f"{said}, {left}"
    said += _OF.get(trial.measured, "")
    if trial.told is None:
        return said
    return (
        f"{said}, the report said{' of a step' if trial.measured == RUN else ''}: {describe_gain(trial.told)}"
    )


def _between(gain: Gain) -> str:
    return f"({times(gain.low)} to {times(gain.high)})"


def describe_gain(told: Told) -> str:
    """What the report said of the gain."""
    low, high = (None if each is None else f"{times(each)}x" for each in (told.low, told.high))
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"about {low}, perhaps more"
    if told.about and told.low is not None and told.high is not None:
        is_wide = told.high >= WIDE * told.low
        return f"{low} to {high}" if is_wide else f"about {low}, at most {high}"
    return f"{low.removesuffix('x')} to {high}"


def times(ratio: float) -> str:
    """Write how many times as fast something is, with two decimals where one says too little."""
    return f"{ratio:.2f}" if ratio < 1.2 else f"{ratio:.1f}"


def summed_up(
    about: Trial,
    choice: Choice,
    report: Report,
    runs: Sequence[SweepRun],
    command: Sequence[str],
    judged: Judgement,
    where: str,
) -> Trial:
    """Return `about`, which holds where and how it was run, with what its runs show."""
    pairs, warnings = pair_runs(choose_step_time(runs, about.measured), choice.params), list(about.warnings)
    if disturbed := sum(run.disturbed for run in runs):
        warnings.append(f"other programs took CPUs in {disturbed} of {len(runs)} runs: a pair shares them")
    first, change = choice.fixes[0], choice.change
    trial = replace(
        about,
        fix=first.code,
        fix_id=first.id,
        fix_text="; ".join(fix.text for fix in choice.fixes),
        command=first.command,
        apply=[*_typed(choice, runs, command), *_edits(choice, where)],
        settings=[
            Setting(parameter=name, before=_before(name, report), after=value)
            for name, value in change.settings.items()
        ],
        variables=[
            Setting(parameter=name, before=os.environ.get(name), after=value)
            for name, value in change.variables.items()
        ],
        in_workers=_in_workers(change, report),
        runs=Runs(
            before_ns=[round(own * 1e6) for own, _ in pairs],
            after_ns=[round(other * 1e6) for _, other in pairs],
        ),
        gain=judged.gain,
        gain_unqueued=judged.gain_unqueued,
        told=promised_gain(choice.fixes),
        kind=judged.kind,
        proven=judged.kind == PROVEN,
        untried=choice.untried,
        warnings=warnings,
    )
    return replace(trial, text=describe(trial))


def _typed(choice: Choice, runs: Sequence[SweepRun], command: Sequence[str]) -> list[str]:
    """How to type settings and variables, as a search says it of its best."""
    origin = next((run.origin for run in runs if run.origin and not run.params), None)
    variables = [f"{name}={value} before the command" for name, value in choice.change.variables.items()]
    return [*changes(choice.params, list(command), origin), *variables]


def _edits(choice: Choice, where: str) -> list[str]:
    """What to edit of the program that no setting makes; `where`: the lines that it is about."""
    at = f": {where}" if where else ""
    texts = [fix.text for fix in choice.fixes if fix.change is not None and fix.change.kept_open]
    if any(each.stored == PARQUET for each in choice.stored):
        texts.append("read Parquet in the place of CSV, pandas.read_parquet for read_csv")
    return [f"{text}{at}" for text in texts]


def _in_workers(change: Change, report: Report) -> list[Setting]:
    """What each worker sets, and what the recorded run's workers had."""
    system = None if report.main_rank is None else report.main_rank.system
    workers = [each for each in (system.processes if system else []) if each.role != "main"]
    settings = []
    for library, count in change.threads.items():
        had = [each.library_threads[library] for each in workers if library in (each.library_threads or {})]
        before = str(max(had)) if had else None
        settings.append(Setting(parameter=f"{THREADS_OF}{library}", before=before, after=count))
    if change.cpus:
        bound = next((each.cpus for each in workers if each.cpus), None)
        settings.append(
            Setting(
                parameter="CPUs",
                before=None if bound is None else _listed(bound),
                after=_listed(change.cpus),
            )
        )
    return settings


def _before(argument: str, report: Report) -> str | None:
    """The program's own value of an argument of its loader."""
    loader = None if report.main_rank is None else report.main_rank.primary
    by_argument = {name: knob for knob, name in LOADER_ARGUMENTS.items()}
    field = "workers" if by_argument[argument] == WORKERS else argument
    value = None if loader is None else getattr(loader, field)
    return None if value is None else str(value)


def _listed(cpus: Sequence[int]) -> str:
    return ",".join(map(str, cpus))


def describe_intent(
    choice: Choice, jobs: Sequence[Job], program: Program, most_runs: int, steps: int | None
) -> list[str]:
    """Say what is tried, and what that does to the user's files."""
    lines = [f"tries: {'; '.join(fix.text for fix in choice.fixes)}"]
    if jobs:
        copied = [os.path.relpath(job.source, program.working_directory) for job in jobs]
        what = copied[0] if len(copied) == 1 else counted(len(copied), "file")
        lines.append(f"copies {what}, by {program.python}; the original stays as it is")
    took = f", recorded in {time_span(program.seconds)}" if program.seconds else ""
    ended = f", each ended after {steps} steps" if steps else ""
    least = 2 * FEWEST_PAIRS
    times = f"{least} times" if most_runs < least + 2 else f"{least} to {most_runs} times"
    lines.append(f"runs {times}{took}{ended}: {shlex.join(masked(program.command))}")
    lines += _needs(jobs, program.seconds, least, max(least, most_runs), bool(steps))
    return [*lines, *_writes(jobs, program)]


def _needs(
    jobs: Sequence[Job], seconds: float | None, least: int, most: int, are_ended: bool
) -> Iterator[str]:
    """Say about how long it takes and how much disk, as far as that is known beforehand."""
    if seconds:
        spans = [time_span(count * seconds) for count in dict.fromkeys((least, most))]
        shorter = "; less where runs are ended before" if are_ended else ""
        yield f"takes about {' to '.join(spans)} where a run takes as long as the recorded one{shorter}"
    if jobs:
        held = size(sum(_bytes_at(job.source) for job in jobs))
        unpacks = any(job.how in (UNPACKED, LIGHTER) for job in jobs)
        larger = "; decoded, it may take several times as much" if unpacks else ""
        yield f"needs disk for the copy: the original has {held}{larger}"


def _bytes_at(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    inside = (os.path.join(root, name) for root, _, names in os.walk(path) for name in names)
    return sum(os.lstat(each).st_size for each in inside)


def _writes(jobs: Sequence[Job], program: Program) -> list[str]:
    """Say what a run writes: what the recorded one wrote; data that it made is there now."""
    if program.wrote is None:
        return ["what a run writes is not known: the session recorded no calls"]
    sources = {job.source for job in jobs}
    made = [path for path in program.wrote if _place(path, program) in sources]
    others = [path for path in program.wrote if path not in made]
    lines = []
    if made:
        what = made[0] if len(made) == 1 else counted(len(made), "file")
        lines.append(f"the recorded run made its data, {what}: a run that makes it anew ends the trial")
    if others:
        left = len(others) - _MOST_NAMED
        more = f" and {left} more" if left > 0 else ""
        lines.append(f"each run writes what the recorded one wrote: {', '.join(others[:_MOST_NAMED])}{more}")
    return lines or ["the recorded run wrote no file that is still there"]


def _place(path: str, program: Program) -> str:
    return os.path.realpath(os.path.join(program.working_directory, path))
