"""A row a rank: who waits for data, who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.text import Text

from iotrace.analysis.results import Imbalance, RankReport, Report
from iotrace.report.layout import figures_table, line, print_table

_MOST_ROWS = 15  # of more ranks only the latest are shown, the median, and how many the rest are
_LATEST = 3
_NARROW = 76  # columns, below which neither hosts nor computing are shown
_OWN = ("step ms", "data ms", "data")
_COMPARED = ("for others", "compute", "late in")


def print_ranks(report: Report, console: Console) -> None:
    """Print the ranks, those first that the others wait for, or else that wait longest for data."""
    imbalance, late = report.imbalance, report.verdict.rank
    ranks = sorted(report.ranks, key=lambda rank: (-_lateness(rank, imbalance), rank.rank))
    rows = [_row(rank, imbalance) for rank in ranks]
    unnumbered = any(rank.pid is not None for rank in ranks)
    table = figures_table([""], ["process" if unnumbered else "rank"])
    table.add_column("host", no_wrap=True, overflow="ellipsis")
    headings = _OWN if imbalance is None else _OWN + _COMPARED
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    several = len(ranks) > _MOST_ROWS
    for rank, row in list(zip(ranks, rows, strict=True))[: _LATEST if several else None]:
        mark = "late" if report.verdict.kind == "rank-late" and rank.rank == late else ""
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        number = rank.rank if rank.pid is None else rank.pid
        table.add_row(Text(mark, style="bold red"), f"{number}{restart}", rank.host or "", *row)
    if several:
        steps = [rank.steps.mean_ms for rank in ranks if rank.steps.mean_ms is not None]
        waits = [rank.data_wait.raw_ms for rank in ranks if rank.data_wait.raw_ms is not None]
        middle = [f"{median(each):.1f}" if each else "?" for each in (steps, waits)]
        table.add_row("", "", f"median of {len(ranks)}", *middle, *[""] * (len(headings) - 2))
    if console.width < _NARROW:
        table.columns = [column for column in table.columns if column.header not in ("host", "compute")]
    print_table(console, table)
    legend = "data: own wait for data, of measured steps"
    if imbalance is not None:
        steps_seen = max((each.steps for each in imbalance.ranks), default=0)
        legend += (
            f"; for others: waits in collectives, compute: both of {steps_seen} profiled steps; "
            "late in: last to arrive, of all collectives"
        )
    line(console, "", Text(legend, style="dim"), 0)
    console.print()


def _lateness(rank: RankReport, imbalance: Imbalance | None) -> float:
    if imbalance is not None and imbalance.stragglers:
        return next((one.waited_for_ms for one in imbalance.stragglers if one.rank == rank.rank), 0.0)
    return rank.data_wait.raw_wait_fraction or 0.0


def _row(rank: RankReport, imbalance: Imbalance | None) -> Sequence[str]:
    wait, steps = rank.data_wait, rank.steps
    row = [
        "?" if steps.mean_ms is None else f"{steps.mean_ms:.1f}",
        "?" if wait.raw_ms is None else f"{wait.raw_ms:.1f}",
        "?" if wait.raw_wait_fraction is None else f"{100 * wait.raw_wait_fraction:.0f} %",
    ]
    if imbalance is None:
        return row
    own = next((one for one in imbalance.ranks if one.rank == rank.rank), None)
    straggler = next((one for one in imbalance.stragglers if one.rank == rank.rank), None)
    matched = imbalance.collectives.matched
    if own is None or not own.step_ms:
        return [*row, "?", "?", "?"]
    waited_ms = own.communication_wait_ms
    return [
        *row,
        "?" if waited_ms is None else f"{100 * waited_ms / own.step_ms:.0f} %",
        f"{100 * own.compute_ms / own.step_ms:.0f} %",
        f"{100 * (straggler.last_to_arrive if straggler else 0) / matched:.0f} %" if matched else "?",
    ]
