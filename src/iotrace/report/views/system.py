"""The view of the machine under a program: means and peaks of processes, host and devices."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from iotrace.analysis.results import RankReport, Report, ReportPart
from iotrace.analysis.results.base import figures_of
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import three_digits

# How this view shows units, and the factor.
_SHOWN = {"bytes": ("MiB", 2**-20), "0 to 1": ("%", 100.0), "bytes/s": ("MB/s", 1e-6)}


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the machine over the measured time: its mean, and its peak."""

    what: str
    mean: float | None
    peak: float | None
    unit: str


def system(report: Report) -> list[Table]:
    """Show the mean and the peak of what the rank's processes, its host and its devices used."""
    fields = (
        Field("what", "what", is_text=True),
        Field("mean", "mean", three_digits, absent="-"),
        Field("peak", "peak", three_digits, absent="-"),
        Field("unit", "unit", is_text=True),
    )

    def make(rank: RankReport) -> Table:
        return Table(
            title="System, over the measured steps",
            rows=[*_rows(rank)],
            fields=fields,
            unknown="no sample was taken",
            remedy="iotrace run takes them, without --no-telemetry",
        )

    return of_ranks(report.ranks, make)


def _rows(rank: RankReport) -> Iterator[SystemRow]:
    found = rank.system
    yield from _rows_of(found, after=" of the rank's processes")
    for process in found.processes:
        yield from _rows_of(process, after=f" of {process.role}, pid {process.pid}")
    if found.host is not None:
        yield from _rows_of(found.host)
    for gpu in found.gpus:
        yield from _rows_of(gpu, before=f"gpu {gpu.index} ")


def _rows_of(part: ReportPart, before: str = "", after: str = "") -> Iterator[SystemRow]:
    """Make a row of each figure that has a name here; the largest sample stands beside its mean."""
    for figure in sorted(figures_of(type(part)), key=lambda each: each.place):
        name = figure.name
        peak = name if figure.is_largest else f"{figure.sampled}_peak"
        values = (None if name == peak else getattr(part, name), getattr(part, peak, None))
        if figure.said and values != (None, None):
            unit, scale = _SHOWN.get(figure.unit, (figure.unit, 1.0))
            mean, most = (None if value is None else value * scale for value in values)
            yield SystemRow(what=f"{before}{figure.said}{after}", mean=mean, peak=most, unit=unit)
