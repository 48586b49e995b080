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
from iotrace.report.layout import figures_table, line, print_table, two_columns
from iotrace.report.screen import WIDTH, shown_path
from iotrace.report.sweeps.head import figures_of, print_head, print_run, print_warnings, rate
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import fill, named
from iotrace.sweeps.results import PointResult, SweepResult, SweepRun
from iotrace.sweeps.schedule import Sweep
from iotrace.units import digits, milliseconds, size

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
    _print_next(result, console)


def sweep_table(result: SweepResult, width: int) -> Table:
    """One row a point, the last column with marks; a narrow terminal shows no model and no memory."""
    params = result.points[0].params if result.points else {}
    wide = ["model", "memory"] if width >= _NARROW else []
    table = figures_table([], [*params, "steps/s"])
    table.add_column("95 %", no_wrap=True)
    for heading in ("wait", *wide):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in result.points:
        advised = is_advised(row, result)
        style = "bold" if advised else "" if row.status == "ok" else "dim"
        table.add_row(*row.params.values(), *_cells(row, bool(wide)), _marks(row, advised), style=style)
    return table


def _cells(row: PointResult, wide: bool) -> list[str]:
    cells = figures_of(row)
    predicted, memory = row.predicted_per_second, row.rss_peak_bytes
    if wide:
        cells += ["" if predicted is None else rate(predicted), "" if memory is None else size(memory)]
    return cells


def point_rows(result: SweepResult) -> tuple[list[str], list[list[str]]]:
    """The table's headings and, for each point, its cells."""
    params = list(result.points[0].params) if result.points else []
    headings = [*params, "steps/s", "95 %", "wait", "model", "memory", ""]
    return headings, [
        [*row.params.values(), *_cells(row, True), _marks(row, is_advised(row, result))]
        for row in result.points
    ]


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
    ok = [row for row in result.points if row.status == "ok"]
    advised = [row for row in ok if is_advised(row, result)]
    shown = {
        "95 %": any(row.ci95 for row in ok),
        "wait": any(row.raw_wait_fraction is not None for row in ok),
        "model": console.width >= _NARROW and any(row.predicted_per_second is not None for row in ok),
        "memory": console.width >= _NARROW and any(row.rss_peak_bytes is not None for row in ok),
        "yours": any(row.yours for row in ok),
        "best": bool(advised),
        "busy": any(row.disturbed for row in ok),
    }
    parts = [f"{sign}: {_LEGEND[sign]}" for sign, there in shown.items() if there]
    if parts:
        line(console, "", Text(" · ".join(parts), style="dim"), 0)


def _details_table(result: SweepResult) -> Table:
    """What each point's step is made of."""
    params = result.points[0].params if result.points else {}
    table = figures_table([], [*params, *_DETAILS])
    for row in result.points:
        contention = f" ({row.contention_ms:+.1f})" if row.contention_ms is not None else ""
        table.add_row(
            *row.params.values(),
            "-" if row.per_second is None else rate(row.per_second),
            _ms(row.compute_ms) + contention,
            _ms(row.production_ms),
            "" if row.cpu_pct_mean is None else f"{row.cpu_pct_mean:.0f} %",
            row.stopped_by or "",
        )
    return table


def _print_next(result: SweepResult, console: Console) -> None:
    console.print()
    for number, (text, what) in enumerate(following(result)):
        two_columns(console, "" if number else "Next", text, Text(what, style="dim"), WIDTH, whole=True)


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


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


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
