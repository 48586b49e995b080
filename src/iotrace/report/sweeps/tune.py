"""A tuning on the terminal."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from iotrace.report.layout import line, print_table, say, table_of
from iotrace.report.screen import print_commands, shown_path
from iotrace.report.sweeps.head import figures_of, print_head, print_run, print_warnings
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import PointResult, SweepRun
from iotrace.sweeps.tune.results import TuneResult
from iotrace.units import digits

_LONGEST = 36


def print_tune(result: TuneResult, console: Console) -> None:
    """Print what to set and how it is typed, what is not worth it, then the settings that were run."""
    print_head(result.verdict, console, change_of(result)[1:])
    for number, item in enumerate(result.no_effect):
        low, high = item.interval_pct
        say(console, "" if number else "Not", f"{item.knob}: {low:+.1f} … {high:+.1f} % ({item.source})")
    console.print()
    print_table(console, _table(result))
    if result.ceiling is not None:
        line(console, "", f"ceiling: {digits(result.ceiling.per_second)} steps/s, on batches from memory", 0)
    for setting in result.refused[:1]:
        line(console, "", f"not tried: {named(setting.params)}: {setting.why}", 0)
    print_warnings(result.warnings, console)
    print_commands(following(result)[:1], console)


def change_of(result: TuneResult) -> list[str]:
    """How to type the change that is advised, in lines; the first is the fix of the verdict."""
    return result.best.apply if result.best is not None and result.verdict.kind == "best" else []


def following(result: TuneResult) -> list[tuple[str, str]]:
    """What to type next: the rest of a search, or the command with the change and what it did."""
    command = shlex.join(["--", *result.argv])
    if not result.complete:
        return [(f"iotrace tune --resume -o {shown_path(result.path)} {command}", "")]
    if result.best is None or not change_of(result):
        return []
    found = [(f"iotrace run {command}", "with the change")]
    runs = {named(row.params): row.sessions for row in result.runs}
    own, best = runs.get(named({})), runs.get(named(result.best.params))
    if own and best:
        pair = f"{shown_path(own[-1])} {shown_path(best[-1])}"
        found.append((f"iotrace compare {pair}", "what the change does"))
    return found


def _table(result: TuneResult) -> Table:
    headings = ("setting", "steps/s", "95 %", "wait", "runs", "")
    table = table_of(headings, texts=("setting", "95 %", ""))
    for row in result.runs:
        name = name_of(row)
        table.add_row(
            name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…",
            *figures_of(row),
            str(row.repeats),
            mark_of(row, result),
        )
    return table


def name_of(row: PointResult) -> str:
    """What was set in these runs."""
    return named(row.params) or "as it is"


def mark_of(row: PointResult, result: TuneResult) -> str:
    """Say whether these are your settings, the best, beside busy programs; or why there is no figure."""
    if row.status != "ok":
        return row.status
    marks = [] if row.params else ["yours"]
    advised = result.best is not None and result.verdict.kind != "no-advice"
    if advised and result.best is not None and row.params == result.best.params:
        marks.append("best")
    return " ".join([*marks, *(["busy"] if row.disturbed else [])])


def progress(
    console: Console, budget_s: float | None
) -> tuple[Callable[[Request], None], Callable[[SweepRun], None]]:
    """Make what is called before and after each run: a line each, with the time that is left."""
    started = time.monotonic()

    def before(request: Request) -> None:
        what = "batches from memory" if request.kind == "ceiling" else named(request.params) or "as it is"
        left_s = None if budget_s is None else max(0.0, budget_s + started - time.monotonic())
        console.print(what if left_s is None else f"{what} (at most {left_s:.0f} s left)")

    return before, lambda run: print_run(run, console)
