"""Two traces beside each other: their tables, and how the terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace
from rich.console import Console

from iotrace.analysis.compare.traces import NamedChange, TraceComparison
from iotrace.report.blocks import Field, Table
from iotrace.report.layout import line, print_tables, say
from iotrace.report.views.device import kernel_name
from iotrace.units import counted, milliseconds

_MOST_ROWS = 10
_LEAST_MS = 0.05
_LEAST_US = 5.0  # of a row: less is printed as 0.00 ms; CSV and JSON have all


class _Row(msgspec.Struct, frozen=True):
    by_ms: str
    ms: str
    calls: str
    change: str
    name: str


def print_trace_comparison(found: TraceComparison, console: Console) -> None:
    """Print what changed of a step, then kernels and operators by what they changed."""
    line(console, "", headline(found), 0)
    for label, text in facts_of(found):
        say(console, label, text)
    console.print()
    print_tables(tables_of(found, _MOST_ROWS), console)


def facts_of(found: TraceComparison) -> list[tuple[str, str]]:
    """List the parts of the step that changed, how far to trust that, and what else differs, by label."""
    rows = []
    if found.breakdown_ms is not None:
        parts = [
            f"{name.replace('_', ' ')} {after - before:+.1f} ({before:.1f} to {after:.1f})"
            for name, (before, after) in sorted(
                found.breakdown_ms.items(), key=lambda part: -abs(part[1][1] - part[1][0])
            )
            if abs(after - before) >= _LEAST_MS
        ]
        rows.append(("Parts", " · ".join(parts) or "none changed by 0.05 ms"))
    steps = " and ".join(counted(count, "step") for count in found.steps)
    rows.append(("Trust", f"caution: {steps}; of one trace each nothing tells what is chance"))
    return [*rows, *(("", f"differs in {text}") for text in found.differs)]


def tables_of(found: TraceComparison, most: int | None = None) -> list[Table]:
    """Make the tables of kernels and operators that changed, the first `most` of each."""
    return [
        _table("Kernels: ms of a step on the device", found.kernels, most),
        _table("Operators: ms of a step on the host, without the operators inside", found.operators, most),
    ]


def changes_of(found: TraceComparison) -> list[Table]:
    """Make the tables with all rows and fields, for CSV."""
    tables = zip(tables_of(found), (found.kernels, found.operators), strict=True)
    return [replace(table, rows=rows or []) for table, rows in tables]


def headline(found: TraceComparison) -> str:
    """Say how long a step took in each."""
    before, after = found.step_ms
    if before is None or after is None or found.change_pct is None:
        return "UNKNOWN   a trace holds neither steps nor operators nor device events"
    return f"STEP   {milliseconds(before)}, then {milliseconds(after)} ({found.change_pct:+.0f} %)"


def _table(title: str, changes: Sequence[NamedChange] | None, most: int | None) -> Table:
    fields = (
        Field("by_ms", "by"),
        Field("ms", "ms"),
        Field("calls", "calls"),
        Field("change", "change", is_text=True),
        Field("name", "name", kernel_name, is_text=True),
    )
    shown = [one for one in changes or () if one.change != "same" and abs(one.by_us) >= _LEAST_US][:most]
    rows = [
        _Row(
            by_ms=f"{one.by_us / 1e3:+.2f}",
            ms=f"{one.us[0] / 1e3:.2f} > {one.us[1] / 1e3:.2f}",
            calls=f"{one.calls[0]:.0f} > {one.calls[1]:.0f}",
            change=one.change,
            name=one.name,
        )
        for one in shown
    ]
    why = "a trace shows no device" if changes is None else "none changed by 0.005 ms or more"
    return Table(title=title, rows=rows, fields=fields, unknown=why)
