"""A merge's summary on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iotrace.merge.inputs import SESSION
from iotrace.merge.summary import SourceSummary, Summary
from iotrace.units import counted, duration, rate, size

_SHOWN = 12


def print_summary(summary: Summary, console: Console) -> None:
    """Counts in and out, clocks with their bounds, what the check after the alignment saw, what was lost."""
    for path in summary.outputs:
        console.print(Text(f"merged       {path}"), soft_wrap=True)
    _line(
        console,
        "size",
        f"{size(summary.bytes_read)} read, {size(summary.bytes_written)} written "
        f"in {summary.seconds:.1f} s ({rate(summary.bytes_read, summary.seconds)})",
    )
    selected = any(count.selected_away for count in summary.counts.values())
    for index, (kind, count) in enumerate(summary.counts.items()):
        text = f"{kind:10} {count.read} in, {count.written} out"
        if selected:
            text += f", {count.selected_away} left out on request"
        _line(console, "counts" if index == 0 else "", text)
    # Batches that are ready at once overlap by their nature: a session's slices say nothing of clocks.
    moved = sum(source.lanes_moved for source in summary.sources if source.kind != SESSION)
    check = [
        f"{counted(moved, 'slice')} outside the slice that they begin in (children outside their parents)"
        + (", on a track beside it" if moved else ""),
        f"{counted(summary.arrows_backwards, 'flow')} backwards (kernels before their launch)",
    ]
    if summary.loose_arrow_ends:
        check.append(f"{counted(summary.loose_arrow_ends, 'flow end')} in no slice")
    _line(console, "check", "; ".join(check))
    console.print()
    console.print(_clocks(summary.sources))
    if len(summary.sources) > _SHOWN:
        console.print(Text(f"{len(summary.sources) - _SHOWN} more inputs: --json lists them"))
    console.print()
    for kind in ("exact", "inferred", "assumed", "none"):
        reasons = list(dict.fromkeys(item.clock_why for item in summary.sources if item.clock == kind))
        for why in reasons[:_SHOWN]:
            _line(console, kind, why)
        if len(reasons) > _SHOWN:
            _line(console, kind, f"{len(reasons) - _SHOWN} more: --json lists them")
    for note in summary.notes:
        _line(console, "note", note)
    for problem in summary.problems[:_SHOWN]:
        _line(console, "damage", problem)
    if len(summary.problems) > _SHOWN:
        _line(console, "damage", f"{len(summary.problems) - _SHOWN} more: --json lists them")
    console.print()
    _line(console, "open", "https://ui.perfetto.dev")


def _line(console: Console, label: str, text: str) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=12)
    table.add_column(overflow="fold")
    table.add_row(Text(label), Text(text))
    console.print(table)


def _clocks(sources: list[SourceSummary]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("input", overflow="fold")
    table.add_column("rank", justify="right")
    table.add_column("events", justify="right")
    table.add_column("clock")
    table.add_column("bound", justify="right")
    table.add_column("shifted by", justify="right")
    drifted = any(source.clock_drift_ppb for source in sources[:_SHOWN])
    if drifted:
        table.add_column("drift undone", justify="right")
    for source in sources[:_SHOWN]:
        drift = source.clock_drift_ppb
        table.add_row(
            Text(source.path.rsplit("/", 1)[-1]),
            "" if source.rank is None else str(source.rank),
            str(source.events),
            source.clock,
            "unknown" if source.clock_bound_ns is None else f"± {duration(source.clock_bound_ns)}",
            duration(source.clock_shift_ns) if source.clock_shift_ns else "",
            *([f"{abs(drift) / 1e3:.3g} ppm" if drift else ""] if drifted else []),
        )
    return table
