"""A sweep on the terminal and as CSV: the live table while it runs, then advice and table."""

from __future__ import annotations

import csv
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iotrace.errors import writing
from iotrace.report.layout import line, print_table, table_of
from iotrace.report.screen import print_commands, shown_path
from iotrace.report.sweeps.head import figures_of, print_head, print_run, print_warnings, rate
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import fill, named
from iotrace.sweeps.results import PointResult, SweepResult, SweepRun
from iotrace.sweeps.schedule import Sweep
from iotrace.units import digits, if_known, milliseconds, one_decimal, size

_DETAILS = ("steps/s", "compute ms", "make ms", "CPU", "stopped by")
_NARROW = 72  # columns below which a table shows less
_LEGEND = {
    "95 %": "interval of steps/s",
    "wait": "share of a step that waits for data",
    "model": "predicted from the fewest workers",
    "memory": "peak of all processes",
    "yours": "as the program has it",
    "best": "advised",
    "busy": "other programs took CPUs",
}


def print_sweep(result: SweepResult, console: Console, verbose: bool = False) -> None:
    """Print what to use and how sure that is, the table with its legend, warnings, and what to type next."""
    print_head(result.verdict, console)
    console.print()
    print_table(console, sweep_table(result, console.width))
    _print_legend(result, console)
    if result.ceiling is not None:
        step = milliseconds(result.ceiling.step_ms)
        text = f"ceiling: {digits(result.ceiling.per_second)} steps/s ({step} a step), on batches from memory"
        line(console, "", text, 0)
    if verbose:
        console.print()
        print_table(console, _details_table(result))
        text = (
            "compute: the step less its wait (in brackets: above the ceiling's); make: a batch, by one worker"
        )
        line(console, "", Text(text, style="dim"), 0)
    for row in result.points:
        if row.status not in ("ok", "not run"):
            line(console, "", f"{named(row.params)}: {row.status}: {row.reason}; its output: {_log(row)}", 0)
    print_warnings(result.warnings, console)
    print_commands(following(result), console)


def sweep_table(result: SweepResult, width: int) -> Table:
    """One row a point, the last column with marks; a narrow terminal shows no model and no memory."""
    headings, rows = point_rows(result, wide=width >= _NARROW)
    table = table_of(headings, texts=("95 %", ""))
    for row, cells in zip(result.points, rows, strict=True):
        style = "bold" if is_advised(row, result) else "" if row.status == "ok" else "dim"
        table.add_row(*cells, style=style)
    return table


def point_rows(result: SweepResult, wide: bool = True) -> tuple[list[str], list[list[str]]]:
    """The table's headings and, for each point, its cells; `wide`: with model and memory."""
    headings = [
        *params_of(result.points),
        "steps/s",
        "95 %",
        "wait",
        *(("model", "memory") if wide else ()),
        "",
    ]
    rows = []
    for row in result.points:
        more = [if_known(row.predicted_per_second, rate), if_known(row.rss_peak_bytes, size)] if wide else []
        rows.append([*row.params.values(), *figures_of(row), *more, _marks(row, is_advised(row, result))])
    return headings, rows


def params_of(points: Sequence[PointResult]) -> list[str]:
    """Name what the points set: all of them the same."""
    return list(points[0].params) if points else []


def is_advised(row: PointResult, result: SweepResult) -> bool:
    """Whether this is the point that the sweep advises."""
    return result.advice is not None and row.params == result.advice.params


def _marks(row: PointResult, advised: bool) -> str:
    if row.status != "ok":
        return row.status
    marks = {"yours": row.yours, "best": advised, "busy": row.disturbed}
    return " ".join(mark for mark, holds in marks.items() if holds)


def _print_legend(result: SweepResult, console: Console) -> None:
    """Explain what the table shows, and only that."""
    headings, rows = point_rows(result, wide=console.width >= _NARROW)
    figures = zip(headings, *rows, strict=True) if rows else ()
    shown = {heading for heading, *cells in list(figures)[len(params_of(result.points)) :] if any(cells)}
    shown.update(mark for row in rows for mark in row[-1].split())
    parts = [f"{sign}: {meaning}" for sign, meaning in _LEGEND.items() if sign in shown]
    if parts:
        line(console, "", Text(" · ".join(parts), style="dim"), 0)


def _details_table(result: SweepResult) -> Table:
    """What each point's step is made of."""
    table = table_of([*params_of(result.points), *_DETAILS], texts=())
    for row in result.points:
        table.add_row(
            *row.params.values(),
            if_known(row.per_second, rate, "-"),
            if_known(row.compute_ms, one_decimal) + if_known(row.contention_ms, " ({:+.1f})".format),
            if_known(row.production_ms, one_decimal),
            if_known(row.cpu_pct_mean, "{:.0f} %".format),
            row.stopped_by or "",
        )
    return table


def following(result: SweepResult) -> list[tuple[str, str]]:
    """What to type next: the command as advised, a look at that point, what changed; or more runs."""
    command = shlex.join(["--", *result.argv])
    found: list[tuple[str, str]] = []
    chosen = None
    if result.advice is not None:
        chosen = next(row for row in result.points if row.params == result.advice.params)
        filled = shlex.join(["--", *fill(result.argv, chosen.params)])
        if filled != command:
            found.append((f"iotrace run {filled}", "as advised"))
        elif not chosen.yours:
            found.append((f"iotrace run {filled}", "once the change is made"))
        found.append((f"iotrace report {shown_path(chosen.sessions[-1])}", "how it waits then"))
        yours = next((row for row in result.points if row.yours and row is not chosen and row.sessions), None)
        if yours is not None:
            pair = f"{shown_path(yours.sessions[-1])} {shown_path(chosen.sessions[-1])}"
            found.append((f"iotrace compare {pair}", "what the change does"))
    else:
        seen = next((row for row in result.points if row.status == "ok" and row.sessions), None)
        if seen is not None:
            found.append((f"iotrace report {shown_path(seen.sessions[-1])}", "how a point ran"))
    # Runs beside busy programs stay what they are: more of them help only where the others are good.
    if not any(row.disturbed for row in result.points) and (chosen is None or chosen.repeats == 1):
        more = f"iotrace sweep --resume -o {shown_path(result.path)} --repeat 5 …"
        found.append((more, "the same command, run more often"))
    return found


def _log(row: PointResult) -> str:
    return str(Path(row.sessions[-1]).parent / "output.log") if row.sessions else "none"


_COLUMNS = (
    "per_second", "samples_per_second", "step_ms", "compute_ms", "contention_ms", "production_ms",
    "raw_wait_fraction", "cpu_pct_mean", "rss_peak_bytes", "predicted_per_second", "stopped_by",
    "prep_stall_ms", "fetch_stall_ms", "repeats", "spread_pct", "yours", "noisy", "status",
)  # fmt: skip


def write_points(points: Sequence[PointResult], path: Path) -> None:
    """Write points as CSV, a line each: its values, the figures, its interval; unknown is an empty cell."""
    names = list(dict.fromkeys(name for row in points for name in row.params))
    with writing(path, "choose another --csv FILE"), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *_COLUMNS, "ci95_low", "ci95_high"])
        for row in points:
            low, high = row.ci95 or (None, None)
            figures = [getattr(row, column) for column in _COLUMNS]
            writer.writerow([*(row.params.get(name) for name in names), *figures, low, high])


class Watcher:
    """A live table on a terminal; a line per run elsewhere."""

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self._sweep = sweep
        self._console = console
        self._total = len(sweep.requests())
        self._under_way = ""
        self._started = 0.0
        self._live = Live(console=console, get_renderable=self._show, refresh_per_second=2, transient=True)

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def before(self, request: Request) -> None:
        """A run begins."""
        done = self._total - len(self._sweep.missing())
        what = {"point": named(request.params), "cold": f"cold ({named(request.params)})"}
        self._under_way = f"run {done + 1} of {self._total}: {what.get(request.kind, request.kind)}"
        self._started = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{self._under_way}{self._left()}")

    def after(self, run: SweepRun) -> None:
        """A run ended."""
        if not self._console.is_terminal:
            print_run(run, self._console)

    def _left(self) -> str:
        seconds = [run.seconds for run in self._sweep.runs]
        if not seconds:
            return ""
        left = len(self._sweep.missing()) * sum(seconds) / len(seconds)
        return f" (about {left / 60:.0f} min left)" if left >= 90 else f" (about {left:.0f} s left)"

    def _show(self) -> Group:
        elapsed = time.monotonic() - self._started
        now = Text(f"{self._under_way}, {elapsed:.0f} s{self._left()}", style="dim")
        return Group(sweep_table(self._sweep.result(), self._console.width), now)
