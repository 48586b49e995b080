"""What a person sees while a sweep runs: the table so far, the run under way, the time left."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from iotrace.report.sweep import sweep_table
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.schedule import Sweep


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
