"""Views of what the device did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from iotrace.analysis.results import Accelerator, RankReport, Report
from iotrace.report.views.table import Field, Table, of_ranks

_NO_TRACE = "no trace of torch.profiler shows a device"
_REMEDY = "iotrace run -- CMD records one where torch sees a device"


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.1f}"


def _of_device(
    report: Report,
    title: str,
    fields: Sequence[Field],
    rows: Callable[[Accelerator], Sequence[msgspec.Struct]],
) -> list[Table]:
    """Make a table for each rank of what `rows` takes from its device."""

    def make(rank: RankReport) -> Table:
        found = rank.accelerator
        if found is None:
            return Table(title=title, rows=[], fields=fields, unknown=_NO_TRACE, remedy=_REMEDY)
        return Table(title=title, rows=rows(found), fields=fields)

    return of_ranks(report.ranks, make)


def modules(report: Report) -> list[Table]:
    """Show for which module's kernels the device idled, and which communication the module launched."""
    fields = (
        Field("idle_us", "idle ms", _ms),
        Field("comm_us", "comm ms", _ms),
        Field("phase", "phase", is_text=True),
        Field("module", "module", is_text=True, absent="no module"),
    )
    return _of_device(report, "Idle time by what ended it", fields, lambda found: found.idle_by_module)


def streams(report: Report) -> list[Table]:
    """Show each stream: how long it was busy, and why it idled."""
    fields = (
        Field("device", "device"),
        Field("stream", "stream"),
        Field("events", "events"),
        Field("busy_us", "busy ms", _ms),
        Field("idle_by_class_us.data_wait", "data wait", _ms),
        Field("idle_by_class_us.host_wait", "host late", _ms),
        Field("idle_by_class_us.kernel_wait", "short gaps", _ms),
        Field("idle_by_class_us.other", "other", _ms),
    )
    return _of_device(
        report, "Streams: events, busy and idle time by class", fields, lambda found: found.streams
    )
