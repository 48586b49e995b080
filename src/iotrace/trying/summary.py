"""From the runs of a trial to its result."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from iotrace.analysis.results import Report
from iotrace.sweeps.apply import changes
from iotrace.sweeps.grid import LOADER_ARGUMENTS, WORKERS
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.rows import pairs_of
from iotrace.trying.fixes import Choice, told_of
from iotrace.trying.proof import Found, times_of
from iotrace.trying.results import PROVEN, Runs, Setting, Trial
from iotrace.trying.words import text_of


def summed_up(
    about: Trial,
    choice: Choice,
    report: Report,
    runs: Sequence[SweepRun],
    command: Sequence[str],
    found: Found,
) -> Trial:
    """Return `about`, which holds where and how it was run, with what its runs show."""
    pairs, warnings = pairs_of(times_of(runs, about.measured), choice.params), list(about.warnings)
    if disturbed := sum(run.disturbed for run in runs):
        warnings.append(f"other programs took CPUs in {disturbed} of {len(runs)} runs: a pair shares them")
    first, change = choice.fixes[0], choice.change
    trial = replace(
        about,
        fix=first.code,
        fix_id=first.id,
        fix_text="; ".join(fix.text for fix in choice.fixes),
        command=first.command,
        apply=_typed(choice, runs, command),
        settings=[
            Setting(parameter=name, before=_before(name, report), after=value)
            for name, value in change.settings.items()
        ],
        variables=[
            Setting(parameter=name, before=os.environ.get(name), after=value)
            for name, value in change.variables.items()
        ],
        runs=Runs(
            before_ns=[round(own * 1e6) for own, _ in pairs],
            after_ns=[round(other * 1e6) for _, other in pairs],
        ),
        gain=found.gain,
        told=told_of(choice.fixes),
        kind=found.kind,
        proven=found.kind == PROVEN,
        untried=choice.untried,
        warnings=warnings,
    )
    return replace(trial, text=text_of(trial))


def _typed(choice: Choice, runs: Sequence[SweepRun], command: Sequence[str]) -> list[str]:
    """How to type settings and variables, as a search says it of its best."""
    origin = next((run.origin for run in runs if run.origin and not run.params), None)
    variables = [f"{name}={value} before the command" for name, value in choice.change.variables.items()]
    return [*changes(choice.params, list(command), origin), *variables]


def _before(argument: str, report: Report) -> str | None:
    """The program's own value of an argument of its loader."""
    loader = None if report.main_rank is None else report.main_rank.primary
    by_argument = {name: knob for knob, name in LOADER_ARGUMENTS.items()}
    field = "workers" if by_argument[argument] == WORKERS else argument
    value = None if loader is None else getattr(loader, field)
    return None if value is None else str(value)
