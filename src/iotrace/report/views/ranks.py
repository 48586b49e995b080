"""The ranks beside each other, a line each."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import Imbalance, RankReport, Report
from iotrace.report.views.table import Field, Table
from iotrace.units import one_decimal, size, three_digits

_WHY = {"data": "its data", "compute": "more computing", "launch": "late launches", "host": "its host"}
_WHY["communication"] = "other collectives"
_START_SKEW_MS = 0.1
_BESIDE = "the ranks beside each other"
_MOVES = {"stays": "the late rank stays the same", "moves": "the late rank moves"}


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
    late_steps: int | None
    start_skew_ms: float | None
    evidence: str | None


def ranks(report: Report) -> list[Table]:
    """Show a line for each rank, those first that the others wait for."""
    rows = sorted((_row(report, rank) for rank in report.ranks), key=lambda row: -(row.waited_for_pct or 0.0))
    fields = (
        Field("rank", "rank"),
        Field("step_ms", "step ms", one_decimal),
        Field("data_wait_ms", "data wait", one_decimal),
        Field("communication_wait_ms", "waits for others", one_decimal),
        Field("compute_ms", "compute", one_decimal),
        Field("other_ms", "rest", one_decimal),
        Field("waited_for_pct", "late %", one_decimal),
        Field("late_by", "late by", lambda kind: _WHY.get(kind, kind), is_text=True, absent="-"),
        Field("host", "host", is_text=True),
    )
    notes = ["late: share of the others' time in which they wait for this rank"] if report.imbalance else []
    notes += _notes(report.imbalance) if report.imbalance else []
    if report.imbalance is None:
        notes += [item.why for item in report.not_captured if item.what == _BESIDE]
    elif any(row.steps < 3 for row in rows):
        notes.append("caution: of fewer than 3 steps nothing is told of why a rank is late")
    if (loops := report.lockstep) is not None and loops.late_rank is not None:
        notes.append(f"late, waits for others: of {loops.steps} steps, by what each rank does in them")
    tables = [Table(title="Ranks, in ms of a step", rows=rows, fields=fields, notes=notes)]
    return [*tables, _late_kinds(report.imbalance)] if report.imbalance is not None else tables


def _notes(found: Imbalance) -> list[str]:
    """Say whether the late rank stays the same, what made each late, and what the order rests on."""
    notes = [] if found.withheld is None else [found.withheld]
    if found.pattern is not None:
        notes.append(f"{_MOVES[found.pattern]}, in {found.late_steps} steps that were late by 5 % or more")
    late = [each for each in found.stragglers if each.severity is not None or each.late_steps]
    notes += [f"rank {each.rank} is late: {each.evidence}" for each in late if each.evidence is not None]
    before = max((each.before_window_ms or 0.0 for each in found.stragglers), default=0.0)
    if before >= _START_SKEW_MS:
        notes.append(f"not counted: {before:.1f} ms by which a rank's profiler started later")
    return [*notes, *_basis(found)]


def _basis(found: Imbalance) -> list[str]:
    """Say what the order of the ranks rests on, where one is told."""
    if not found.collectives.matched or found.withheld is not None:
        return []
    bound = found.clock_bound_us
    clocks = "; no clock was compared" if bound is None else f", and by clocks that agree to {bound:.1f} us"
    return [f"who came last to a collective is known by how long each waits in them{clocks}"]


def _late_kinds(found: Imbalance) -> Table:
    fields = (
        Field("skew_ms", "skew ms", one_decimal),
        Field("matched", "calls"),
        Field("last_rank", "last rank", absent="-"),
        Field("last_count", "times"),
        Field("tied", "tied"),
        Field("unsure", "unsure"),
        Field("name", "collective", is_text=True),
    )
    return Table(
        title="Collectives: which rank comes last most often",
        rows=found.late_kinds,
        fields=fields,
        unknown="none could be matched across the ranks",
        notes=[
            "tied: several ranks came last together, so that none was late",
            *(["unsure: the clocks do not confirm which"] if any(r.unsure for r in found.late_kinds) else []),
        ],
    )


def late_in_groups(report: Report) -> Table:
    """Show, by kind and group, which rank comes last to the collectives; without ranks beside it, why not."""
    found = report.imbalance
    fields = (
        Field("matched", "calls"),
        Field("late_rank", "late rank"),
        Field("late_ms", "late ms", lambda ms: f"{ms:.2f}"),
        Field("late_pct", "in %", one_decimal),
        Field("group", "group", is_text=True, absent="-"),
        Field("kind", "kind", is_text=True),
        Field("unknown_why", "unknown, as", is_text=True, absent="-"),
    )
    title = "Communication: which rank comes last"
    if found is None:
        apart = [item.why for item in report.not_captured if item.what == _BESIDE]
        unknown = apart[0] if apart else "it takes traces of two ranks or more"
        return Table(title=title, rows=[], fields=fields, unknown=unknown)
    late = "late ms: after the median of the other ranks, mean of the calls to which it came last"
    return Table(
        title=title,
        rows=found.late_groups,
        fields=fields,
        unknown="no collective could be matched across the ranks",
        notes=[f"{late}; in %: how many of the matched calls these are", *_basis(found)],
    )


def speeds(report: Report) -> Table:
    """Show how fast communication is once all ranks are there."""
    found = report.imbalance
    rows = [] if found is None else found.collectives.speeds
    fields = (
        Field("least_us", "ms", lambda us: f"{us / 1e3:.2f}"),
        Field("calls", "calls"),
        Field("bytes_per_call", "bytes/call", size),
        Field("algorithm_gb_per_s", "alg. GB/s", three_digits),
        Field("bus_gb_per_s", "bus GB/s", three_digits),
        Field("dtype", "type", is_text=True),
        Field("kind", "kind", is_text=True),
    )
    return Table(
        title="Communication without waits: the least time of all ranks",
        rows=rows,
        fields=fields,
        unknown="no collective could be matched across the ranks",
        remedy="give the traces of all ranks",
    )


def _row(report: Report, rank: RankReport) -> RankRow:
    found = report.imbalance
    balance, late = found.of(rank.rank, rank.incarnation) if found else (None, None)
    row = RankRow(
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
        late_steps=late.late_steps if late is not None else None,
        start_skew_ms=late.before_window_ms if late is not None else None,
        evidence=late.evidence if late is not None else None,
    )
    loops = report.lockstep
    if loops is None or loops.late_rank is None or rank.incarnation != report.last_start:
        return row
    if loops.late_rank == rank.rank:  # what holds over all steps goes before the profiled ones
        by_ms = None if loops.kind is None else loops.late_by_ms[loops.kind]
        return replace(row, waited_for_pct=loops.wait_pct, late_by=loops.kind, late_by_ms=by_ms)
    waits_ms = next((each.waits_ms for each in loops.ranks if each.rank == rank.rank), None)
    return replace(row, communication_wait_ms=waits_ms)
