"""The ranks beside each other, a line each; which of them comes last to collectives."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import Imbalance, LateGroup, LateKind, Lockstep, RankReport, Report
from iotrace.analysis.results.base import figure
from iotrace.report.blocks import Field, Table, columns, us_as_2_digits
from iotrace.units import counted, size, three_digits

_WHY = {"data": "its data", "compute": "more computing", "launch": "late launches", "host": "its host"}
_WHY["communication"] = "other collectives"
_START_SKEW_MS = 0.1
_NOT_COMPARED = "IO092"
_MOVES = {"stays": "the late rank stays the same", "moves": "the late rank moves"}


class RankRow(msgspec.Struct, frozen=True):
    """A rank: means of a step in ms; None where unknown."""

    rank: Annotated[int, figure("its number", said="rank", place=1)]
    host: Annotated[str | None, figure("where it ran", said="host", place=9)]
    steps: int
    step_ms: Annotated[float | None, figure("its step", said="step ms", place=2)]
    data_wait_ms: Annotated[float | None, figure("its wait for data", said="data wait", place=3)]
    compute_ms: Annotated[float | None, figure("its computing", said="compute", place=5)]
    communication_wait_ms: Annotated[
        float | None, figure("waits in collectives", said="waits for others", place=4)
    ]
    other_ms: Annotated[float | None, figure("the rest", said="rest", place=6)]
    waited_for_pct: Annotated[float | None, figure("of the others' time", said="late %", place=7)]
    late_by: Annotated[str | None, figure("what made it late", said="late by", place=8, absent="-")]
    late_by_ms: float | None
    late_steps: int | None
    start_skew_ms: float | None
    evidence: str | None


def ranks(report: Report) -> list[Table]:
    """Show a line for each rank, those first that the others wait for."""
    rows = [_rank(report, rank) for rank in report.ranks]
    rows.sort(key=lambda row: -(row.waited_for_pct or 0.0))
    notes = ["late: share of the others' time in which they wait for this rank"] if report.imbalance else []
    notes += _rank_notes(report.imbalance, report.lockstep) if report.imbalance else []
    if report.imbalance is None:
        notes += [item.why for item in report.not_captured if item.code == _NOT_COMPARED]
    elif any(each.steps < 3 for each in report.imbalance.ranks):
        notes.append("caution: with fewer than 3 steps the report does not say why a rank is late")
    fields = columns(RankRow, late_by=lambda kind: _WHY.get(kind, kind))
    if (loops := report.lockstep) is not None and any(each.waits_ms for each in loops.ranks):
        notes.append(f"late, waits for others: of {loops.steps} steps, by what each rank does in them")
        if report.imbalance is not None and report.imbalance.ranks:
            profiled = max(each.steps for each in report.imbalance.ranks)
            of_profiled = counted(profiled, "profiled step")
            notes.append(f"step, data wait: of the same; compute, rest: of {of_profiled}")
    tables = [Table(title="Ranks, in ms of a step", rows=rows, fields=fields, notes=notes)]
    return [*tables, _late_kinds(report.imbalance)] if report.imbalance is not None else tables


def _rank_notes(found: Imbalance, loops: Lockstep | None) -> list[str]:
    """Say whether the late rank stays the same, what made each late, and what the order rests on."""
    notes = [] if found.withheld is None else [found.withheld]
    if found.pattern is not None and (loops is None or not loops.tells):
        notes.append(f"{_MOVES[found.pattern]}, in {found.late_steps} steps that were late by 5 % or more")
    late = [each for each in found.stragglers if each.severity is not None or each.late_steps]
    if loops is None or not loops.tells:
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
    notes = ["tied: several ranks came last together, so that none was late"]
    if any(row.unsure for row in found.late_kinds):
        notes.append("unsure: the clocks do not confirm which")
    return Table(
        title="Collectives: which rank comes last most often",
        rows=found.late_kinds,
        fields=columns(LateKind),
        unknown="none could be matched across the ranks",
        notes=notes,
    )


def late_in_groups(report: Report) -> Table:
    """Show, by kind and group, which rank comes last to the collectives; without ranks beside it, why not."""
    found = report.imbalance
    apart = [item.why for item in report.not_captured if item.code == _NOT_COMPARED]
    late = "late ms: after the median of the other ranks, mean of the calls to which it came last"
    unknown = apart[0] if apart else "it takes traces of two ranks or more"
    return Table(
        title="Communication: which rank comes last",
        rows=found.late_groups if found is not None else [],
        fields=columns(LateGroup, late_ms=lambda ms: f"{ms:.2f}"),
        unknown=unknown if found is None else "no collective could be matched across the ranks",
        notes=[f"{late}; in %: how many of the matched calls these are", *_basis(found)] if found else [],
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


class WaitRow(msgspec.Struct, frozen=True):
    """What a rank waits in communication for ranks that come later, in us: in all, and by kind."""

    rank: int
    waited_us: float
    by_kind_us: dict[str, float]


def waits(report: Report) -> Table:
    """Show what each rank waits for the others in communication, by kind, the longest first."""
    speeds = [] if report.imbalance is None else report.imbalance.collectives.speeds
    by_rank: dict[int, dict[str, float]] = {}
    for one in speeds:
        for rank, us in one.waited_us.items():
            own = by_rank.setdefault(int(rank), {})
            own[one.kind] = own.get(one.kind, 0.0) + us
    rows = [WaitRow(rank, sum(own.values()), own) for rank, own in by_rank.items()]
    rows.sort(key=lambda row: -row.waited_us)
    kinds = dict.fromkeys(one.kind for one in speeds)
    return Table(
        title="Communication: what each rank waits for the others, in ms",
        rows=rows,
        fields=(
            Field("rank", "rank"),
            Field("waited_us", "in all", us_as_2_digits),
            *(Field(f"by_kind_us.{kind}", kind, us_as_2_digits, absent="-") for kind in kinds),
        ),
        unknown="no collective could be matched across the ranks",
        remedy="give the traces of all ranks",
        notes=["over all matched calls: a rank's time less the least of all ranks"] if rows else [],
    )


def _rank(report: Report, rank: RankReport) -> RankRow:
    found = report.imbalance
    balance, late = found.of(rank.rank, rank.incarnation) if found else (None, None)
    row = RankRow(
        rank=rank.rank,
        host=rank.host,
        steps=balance.steps if balance is not None else rank.steps.count,
        step_ms=balance.step_ms if balance is not None else rank.steps.mean_ms,
        data_wait_ms=balance.data_wait_ms if balance is not None else rank.data_wait.raw_ms,
        compute_ms=getattr(balance, "compute_ms", None),
        communication_wait_ms=getattr(balance, "communication_wait_ms", None),
        other_ms=getattr(balance, "other_ms", None),
        waited_for_pct=getattr(late, "impact_pct", None),
        late_by=getattr(late, "kind", None),
        late_by_ms=getattr(late, "kind_ms", None),
        late_steps=getattr(late, "late_steps", None),
        start_skew_ms=getattr(late, "before_window_ms", None),
        evidence=getattr(late, "evidence", None),
    )
    loops = report.lockstep
    waits = {} if loops is None else {each.rank: each.waits_ms for each in loops.ranks}
    if loops is None or rank.incarnation != report.last_start:
        return row
    if not loops.agrees(rank.rank):  # no share of few profiled steps is this rank's
        row = replace(row, waited_for_pct=None, late_by=None, late_by_ms=None)
    own = next((each for each in loops.ranks if each.rank == rank.rank), None)
    if own is None or not any(waits.values()):
        return row
    row = replace(
        row,
        steps=loops.steps,
        step_ms=own.step_ms,
        data_wait_ms=own.parts_ms.get("data"),
        communication_wait_ms=own.waits_ms,
    )
    if loops.late_rank == rank.rank:  # what holds over all steps goes before the profiled ones
        by_ms = None if loops.kind is None else loops.late_by_ms[loops.kind]
        return replace(row, waited_for_pct=loops.wait_pct, late_by=loops.kind, late_by_ms=by_ms)
    return row
