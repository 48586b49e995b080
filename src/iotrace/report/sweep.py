"""A sweep on the terminal and as CSV: the live table while it runs, then table and advice."""

from __future__ import annotations

import csv
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iotrace.errors import IotraceError
from iotrace.report.layout import figures_table
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import PointResult, SweepResult, SweepRun
from iotrace.sweeps.schedule import Sweep
from iotrace.units import milliseconds, percent

_HEADINGS = ("steps/s", "± 95 %", "model", "wait", "compute ms", "make ms", "CPU", "stopped by")


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print the table, what no loader can beat, the advice and the warnings."""
    console.print(sweep_table(result))
    if result.ceiling is not None:
        step = milliseconds(result.ceiling.step_ms)
        console.print(
            f"ceiling: {result.ceiling.per_second:.3g} steps/s ({step} a step), on batches from memory"
        )
    for row in result.points:
        if row.status not in ("ok", "not run"):
            console.print(f"{named(row.params)}: {row.status}: {row.reason}; its output: {_log(row)}")
    for warning in result.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), warning))
    if result.advice is not None:
        console.print()
        console.print(Text.assemble(("advice: ", "bold"), result.advice.text))
    console.print(f"kept in {result.path}", style="dim")


def sweep_table(result: SweepResult) -> Table:
    """One row a point; `*` marks the advised one. In brackets: what workers take from the computation."""
    params = result.points[0].params if result.points else {}
    table = figures_table([], [*params, *_HEADINGS])
    advised = result.advice.params if result.advice else None
    for row in result.points:
        style = "bold" if row.params == advised else "" if row.status == "ok" else "dim"
        table.add_row(*row.params.values(), *_cells(row, row.params == advised), style=style)
    return table


def _cells(row: PointResult, advised: bool) -> list[str]:
    if row.per_second is None:
        return ["-", "", "", "", "", "", "", row.status]
    half = (row.ci95[1] - row.ci95[0]) / 2 if row.ci95 else None
    return [
        f"{row.per_second:.2f}{'*' if advised else ' '}",
        "" if half is None else f"{half:.2f}{'~' if row.noisy else ''}",
        "" if row.predicted_per_second is None else f"{row.predicted_per_second:.2f}",
        "" if row.raw_wait_fraction is None else percent(row.raw_wait_fraction),
        _ms(row.compute_ms) + (f" ({row.contention_ms:+.1f})" if row.contention_ms is not None else ""),
        _ms(row.production_ms),
        "" if row.cpu_pct_mean is None else f"{row.cpu_pct_mean:.0f} %",
        row.stopped_by or "",
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _log(row: PointResult) -> str:
    return str(Path(row.sessions[-1]).parent / "output.log") if row.sessions else "none"


_COLUMNS = (
    "per_second", "samples_per_second", "step_ms", "compute_ms", "contention_ms", "production_ms",
    "raw_wait_fraction", "cpu_pct_mean", "rss_peak_bytes", "predicted_per_second", "stopped_by",
    "prep_stall_ms", "fetch_stall_ms", "repeats", "noisy", "status",
)  # fmt: skip


def write_csv(result: SweepResult, path: Path) -> None:
    """One line a point: its values, the interval's ends, and the figures; unknown is an empty cell."""
    names = list(result.points[0].params) if result.points else []
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*names, *_COLUMNS, "ci95_low", "ci95_high"])
            for row in result.points:
                low, high = row.ci95 or (None, None)
                figures = [getattr(row, column) for column in _COLUMNS]
                writer.writerow([*row.params.values(), *figures, low, high])
    except OSError as error:
        raise IotraceError(f"cannot write {path}: {error.strerror}", "choose another --csv FILE") from error


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
            figure = f"{1e3 / run.step_ms:.3g} steps/s" if run.ok and run.step_ms else run.status
            why = f": {run.reason}" if run.reason else ""
            self._console.print(f"  {figure}{why} in {run.seconds:.0f} s")

    def _left(self) -> str:
        seconds = [run.seconds for run in self._sweep.runs]
        if not seconds:
            return ""
        left = len(self._sweep.missing()) * sum(seconds) / len(seconds)
        return f" (about {left / 60:.0f} min left)" if left >= 90 else f" (about {left:.0f} s left)"

    def _show(self) -> Group:
        elapsed = time.monotonic() - self._started
        line = Text(f"{self._under_way}, {elapsed:.0f} s{self._left()}", style="dim")
        return Group(sweep_table(self._sweep.result()), line)
