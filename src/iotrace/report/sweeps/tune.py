"""A tuning on the terminal and as CSV."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iotrace.report.layout import figures_table, line, print_table, two_columns
from iotrace.report.screen import WIDTH, print_trust, shown_path
from iotrace.report.sweeps.sweep import write_points
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import PointResult, SweepRun
from iotrace.sweeps.tune.results import TuneResult
from iotrace.units import milliseconds, percent

_BANNERS = {
    "best": ("BEST", "bold green"),
    "at-ceiling": ("AT ITS CEILING", "bold green"),
    "no-advice": ("NO ADVICE", "bold yellow"),
}
_LONGEST = 36


def print_tune(result: TuneResult, console: Console) -> None:
    """Print what to set and how it is typed, what is not worth it, then the settings that were run."""
    found = result.verdict
    banner, style = _BANNERS[found.kind]
    line(console, "", Text.assemble((banner, style), "   ", found.text.removeprefix(banner).lstrip()), 0)
    if found.why:
        line(console, "Why", found.why, WIDTH)
    for fix in found.fixes:
        saved = f"saves {milliseconds(fix.gain_ms_per_step)} a step" if fix.gain_ms_per_step else ""
        two_columns(console, "Fix", fix.text, saved, WIDTH)
    if result.best is not None and found.kind == "best":
        for text in result.best.apply[1:]:
            line(console, "", text, WIDTH)
    print_trust(found.trust, console)
    for number, item in enumerate(result.no_effect):
        low, high = item.interval_pct
        text = f"{item.knob}: {low:+.1f} … {high:+.1f} % ({item.source})"
        line(console, "" if number else "Not", text, WIDTH)
    console.print()
    print_table(console, _table(result))
    if result.ceiling is not None:
        line(console, "", f"ceiling: {result.ceiling.per_second:.3g} steps/s, on batches from memory", 0)
    for setting in result.refused[:2]:
        line(console, "", f"not tried: {named(setting.params)}: {setting.why}", 0)
    for warning in result.warnings:
        line(console, "", Text.assemble(("warning: ", "yellow"), warning), 0)
    console.print()
    command = shlex.join(["--", *result.argv])
    if not result.complete:
        again = f"iotrace tune --resume -o {shown_path(result.path)} {command}"
        two_columns(console, "Next", again, "", WIDTH, whole=True)
    elif result.best is not None and result.best.apply:
        with_it = Text("with the change", style="dim")
        two_columns(console, "Next", f"iotrace run {command}", with_it, WIDTH, whole=True)


def _table(result: TuneResult) -> Table:
    table = figures_table([], [])
    table.add_column("setting", no_wrap=True)
    table.add_column("steps/s", justify="right", no_wrap=True)
    table.add_column("95 %", no_wrap=True)
    table.add_column("wait", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in result.runs:
        name = named(row.params) or "as it is"
        table.add_row(
            name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…",
            "-" if row.per_second is None else f"{row.per_second:.1f}",
            f"{row.ci95[0]:.1f} - {row.ci95[1]:.1f}" if row.ci95 else "",
            "" if row.raw_wait_fraction is None else percent(row.raw_wait_fraction),
            str(row.repeats),
            _mark(row, result),
        )
    return table


def write_csv(result: TuneResult, path: Path) -> None:
    """One line a setting that was run."""
    write_points(result.runs, path)


def _mark(row: PointResult, result: TuneResult) -> str:
    if row.status != "ok":
        return row.status
    marks = [] if row.params else ["yours"]
    if result.best is not None and row.params == result.best.params:
        marks.append("best")
    return " ".join([*marks, *(["busy"] if row.disturbed else [])])


def progress(
    console: Console, budget_s: float | None
) -> tuple[Callable[[Request], None], Callable[[SweepRun], None]]:
    """Make what is called before and after each run: a line each, with the time that is left."""
    started = time.monotonic()

    def before(request: Request) -> None:
        what = "batches from memory" if request.kind == "ceiling" else named(request.params) or "as it is"
        left = (
            ""
            if budget_s is None
            else f" (at most {max(0.0, budget_s + started - time.monotonic()):.0f} s left)"
        )
        console.print(f"{what}{left}")

    def after(run: SweepRun) -> None:
        step_ms = run.compute_ms if run.kind == "ceiling" else run.step_ms
        figure = f"{1e3 / step_ms:.3g} steps/s" if run.ok and step_ms else run.status
        why = f": {run.reason}" if run.reason else ""
        console.print(f"  {figure}{why} in {run.seconds:.0f} s")

    return before, after
