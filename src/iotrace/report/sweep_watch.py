"""What a sweep or a search is at: a live table on a terminal, else a line a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from iotrace.report.layout import grid_rows
from iotrace.report.sweep import points_grid
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.schedule import Sweep
from iotrace.units import digits


def print_run(run: SweepRun, console: Console) -> None:
    """Print the steps per second of a run that ended, or why it has none."""
    step_ms = run.compute_ms if run.kind == "ceiling" else run.step_ms  # it waits for copies
    figure = f"{digits(1e3 / step_ms)} steps/s" if run.ok and step_ms else run.status
    why = f": {run.reason}" if run.reason else ""
    console.print(f"  {figure}{why} in {run.seconds:.0f} s")


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
        grid = points_grid(self._sweep.result(), self._console.width)
        return Group(*grid_rows(grid, self._console.width), now)


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
