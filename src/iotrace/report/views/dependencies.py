"""Views of what awaited what: the critical path of a step, waits between streams."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import CriticalPath, RankReport, Report
from iotrace.report.views.device import NO_TRACE, REMEDY, kernel_name, of_device
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import counted, one_decimal

_KINDS = {
    "data_wait": "data wait",
    "operator": "operators on the host",
    "runtime": "calls of the runtime",
    "host": "host, outside of operators",
    "kernel": "kernels",
    "collective": "collectives",
    "memory": "copies and sets",
    "launch_delay": "launch delay",
    "kernel_gap": "between kernels of a stream",
    "stream_wait": "going on after another stream",
    "unknown": "unknown",
}


class KindRow(msgspec.Struct, frozen=True):
    """A kind's part of the critical path; `us` is the mean of a step."""

    kind: str
    us: float
    pct: float


def critical_path(report: Report) -> list[Table]:
    """Show what a step's length was made of: by kind, then by name."""
    by_name = of_ranks(report.ranks, _by_name)
    return [*of_ranks(report.ranks, _by_kind), *(table for table in by_name if table.rows)]


def _found(rank: RankReport) -> CriticalPath | None:
    return None if rank.accelerator is None else rank.accelerator.critical_path


def _by_kind(rank: RankReport) -> Table:
    title = "Critical path, by kind"
    fields = (
        Field("us", "ms a step", _ms),
        Field("pct", "%", one_decimal),
        Field("kind", "kind", lambda kind: _KINDS.get(kind, kind), is_text=True),
    )
    found = _found(rank)
    if found is None:
        return Table(title=title, rows=[], fields=fields, unknown=NO_TRACE, remedy=REMEDY)
    rows = [
        KindRow(kind=kind, us=us / found.steps, pct=100 * us / found.span_us)
        for kind, us in sorted(found.by_kind_us.items(), key=lambda pair: -pair[1])
        if us
    ]
    length = f"{found.span_us / found.steps / 1e3:.1f} ms each"
    notes = [f"of {counted(found.steps, 'step')} of {found.of_steps}, {length}: the kinds sum to them"]
    inferred, measured = found.stream_waits_inferred, found.stream_waits_measured
    if inferred:
        notes.append(f"{inferred} of {inferred + measured} waits between streams are inferred")
    return Table(title=title, rows=rows, fields=fields, notes=notes)


def _by_name(rank: RankReport) -> Table:
    fields = (
        Field("us", "ms", _ms),
        Field("pct", "%", one_decimal),
        Field("calls", "calls"),
        Field("kind", "kind", is_text=True),
        Field("name", "name", kernel_name, is_text=True),
    )
    found = _found(rank)
    rows = [] if found is None else found.parts
    notes = ["a faster kernel or call that is not on the path makes no step shorter"]
    return Table(title="Critical path, by name: all steps", rows=rows, fields=fields, notes=notes)


def stream_waits(report: Report) -> list[Table]:
    """Show which stream waited for which, and for which kernel."""
    fields = (
        Field("waited_us", "ms", _ms),
        Field("calls", "calls"),
        Field("stream", "stream"),
        Field("waits_for", "for"),
        Field("measured", "known", lambda known: "measured" if known else "inferred"),
        Field("kernel_before", "until this ended", kernel_name, is_text=True),
        Field("kernel", "before this", kernel_name, is_text=True),
    )

    return of_device(
        report,
        "Waits of streams for each other",
        fields,
        lambda found: found.stream_waits,
        lambda found: ["inferred: from cudaStreamWaitEvent calls and times"] if found.stream_waits else [],
        unknown="no stream was seen to wait for another one",
    )


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.2f}"
