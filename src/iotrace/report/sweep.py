"""A sweep's table and advice, on the terminal and as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iotrace.errors import IotraceError
from iotrace.sweeps.grid import named
from iotrace.sweeps.results import PointResult, SweepResult
from iotrace.units import milliseconds, percent


def print_sweep(result: SweepResult, console: Console) -> None:
    """Print the table, what no loader can beat, the advice and the warnings."""
    console.print(sweep_table(result))
    if result.ceiling is not None:
        step = milliseconds(result.ceiling.step_ms)
        console.print(
            f"ceiling: {result.ceiling.per_second:.3g} steps/s ({step} a step), "
            "trained on batches from memory"
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
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in next((list(row.params) for row in result.points), []):
        table.add_column(name, justify="right", no_wrap=True)
    for heading in ("steps/s", "± 95 %", "model", "wait", "compute ms", "make ms", "CPU", "stopped by"):
        table.add_column(heading, justify="right", no_wrap=True)
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
