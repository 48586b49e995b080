"""The ranks beside each other, a line each."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import Imbalance, RankReport, Report
from iotrace.report.views.table import Field, Table

_WHY = {"data": "its data", "compute": "more computing", "launch": "late launches", "host": "its host"}


class RankRow(msgspec.Struct, frozen=True):
    """A rank: means of a step in ms; None where unknown."""

    rank: int
    host: str | None
    steps: int
    step_ms: float | None
    data_wait_ms: float | None
    compute_ms: float | None
    communication_wait_ms: float | None
    other_ms: float | None
    waited_for_pct: float | None
    late_by: str | None
    late_by_ms: float | None


def ranks(report: Report) -> list[Table]:
    """Show a line for each rank, those first that the others wait for."""
    rows = sorted((_row(report, rank) for rank in report.ranks), key=lambda row: -(row.waited_for_pct or 0.0))
    fields = (
        Field("rank", "rank"),
        Field("step_ms", "step ms", _one),
        Field("data_wait_ms", "data wait", _one),
        Field("communication_wait_ms", "for others", _one),
        Field("compute_ms", "compute", _one),
        Field("other_ms", "rest", _one),
        Field("waited_for_pct", "late %", _one),
        Field("late_by", "late by", lambda kind: _WHY.get(kind, kind), is_text=True, absent="-"),
        Field("host", "host", is_text=True),
    )
    notes = ["late: share of the others' time in which they wait for this rank"] if report.imbalance else []
    if report.imbalance is None:
        notes += [item.why for item in report.not_captured if item.what == "the ranks beside each other"]
    elif any(row.steps < 3 for row in rows):
        notes.append("caution: of fewer than 3 steps nothing is told of why a rank is late")
    tables = [Table(title="Ranks, in ms of a step", rows=rows, fields=fields, notes=notes)]
    return [*tables, _late_kinds(report.imbalance)] if report.imbalance is not None else tables


def _late_kinds(found: Imbalance) -> Table:
    fields = (
        Field("skew_ms", "skew ms", _one),
        Field("matched", "calls"),
        Field("last_rank", "last rank", absent="-"),
        Field("last_count", "times"),
        Field("tied", "tied"),
        Field("name", "collective", is_text=True),
    )
    return Table(
        title="Collectives: which rank comes last most often",
        rows=found.late_kinds,
        fields=fields,
        unknown="none could be matched across the ranks",
        notes=["tied: several ranks came last together, so that none was late"],
    )


def _one(number: float) -> str:
    return f"{number:.1f}"


def _row(report: Report, rank: RankReport) -> RankRow:
    found = report.imbalance
    balance = next((one for one in found.ranks if one.rank == rank.rank), None) if found else None
    late = next((one for one in found.stragglers if one.rank == rank.rank), None) if found else None
    return RankRow(
        rank=rank.rank,
        host=rank.host,
        steps=balance.steps if balance is not None else rank.steps.count,
        step_ms=balance.step_ms if balance is not None else rank.steps.mean_ms,
        data_wait_ms=balance.data_wait_ms if balance is not None else rank.data_wait.raw_ms,
        compute_ms=balance.compute_ms if balance is not None else None,
        communication_wait_ms=balance.communication_wait_ms if balance is not None else None,
        other_ms=balance.other_ms if balance is not None else None,
        waited_for_pct=late.impact_pct if late is not None else None,
        late_by=late.kind if late is not None else None,
        late_by_ms=late.kind_ms if late is not None else None,
    )
