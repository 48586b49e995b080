"""Two traces beside each other on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console

from iotrace.analysis.compare.traces import NamedChange, TraceComparison
from iotrace.report.layout import line
from iotrace.report.views.device import kernel_name
from iotrace.report.views.table import Field, Table, print_tables
from iotrace.units import counted, milliseconds

_LABEL = 6
_MOST_ROWS = 10
_LEAST_MS = 0.05


class _Row(msgspec.Struct, frozen=True):
    by_ms: str
    ms: str
    calls: str
    change: str
    name: str


def print_trace_comparison(found: TraceComparison, console: Console) -> None:
    """Print what changed of a step, then kernels and operators by what they changed."""
    line(console, "", _headline(found), 0)
    if found.breakdown_ms is not None:
        parts = [
            f"{name.replace('_', ' ')} {after - before:+.1f} ({before:.1f} to {after:.1f})"
            for name, (before, after) in found.breakdown_ms.items()
            if abs(after - before) >= _LEAST_MS
        ]
        line(console, "Parts", " · ".join(parts) or "none changed by 0.05 ms", _LABEL)
    steps = " and ".join(counted(count, "step") for count in found.steps)
    line(console, "Trust", f"caution: {steps}; of one trace each nothing tells what is chance", _LABEL)
    for text in found.differs:
        line(console, "", f"differs in {text}", _LABEL)
    console.print()
    tables = [
        _table("Kernels: ms of a step on the device", found.kernels),
        _table("Operators: ms of a step on the host, without the operators inside", found.operators),
    ]
    print_tables(tables, console)


def _headline(found: TraceComparison) -> str:
    before, after = found.step_ms
    if before is None or after is None or found.change_pct is None:
        return "UNKNOWN   a trace holds neither steps nor operators nor device events"
    return f"STEP   {milliseconds(before)}, then {milliseconds(after)} ({found.change_pct:+.0f} %)"


def _table(title: str, changes: Sequence[NamedChange] | None) -> Table:
    fields = (
        Field("by_ms", "by"),
        Field("ms", "ms"),
        Field("calls", "calls"),
        Field("change", "change", is_text=True),
        Field("name", "name", kernel_name, is_text=True),
    )
    shown = [one for one in changes or () if one.change != "same"][:_MOST_ROWS]
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
    why = "a trace shows no device" if changes is None else "none changed"
    return Table(title=title, rows=rows, fields=fields, unknown=why)
