"""What each change would gain: the step as predicted, with its interval."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import GainRow, RankReport, Report
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import milliseconds, one_decimal


class ShownGain(GainRow, frozen=True, kw_only=True):
    """A row, with the change as one reads it."""

    shown: str


def gain(report: Report) -> list[Table]:
    """Show a line for each change, largest gain first; those that nothing is predicted of at the end."""
    return of_ranks(report.ranks, _table)


def _table(rank: RankReport) -> Table:
    rows = sorted(rank.gain, key=lambda row: (row.withheld is not None, -(row.gain_ms_per_step or 0.0)))
    fields = (
        Field("shown", "change", is_text=True),
        Field("predicted_ms_per_step", "step ms", one_decimal),
        Field("interval_ms", "95 %", lambda pair: f"{pair[0]:.1f} - {pair[1]:.1f}"),
        Field("gain_ms_per_step", "saves ms", one_decimal),
        Field("speedup", "faster", lambda factor: f"{factor:.2f}x"),
    )
    step_ms = rank.steps.mean_ms
    now = "" if step_ms is None else f", of a step of {milliseconds(step_ms)}"
    return Table(
        title=f"What each change would gain{now}",
        rows=[_shown(row) for row in rows],
        fields=fields,
        unknown=rank.gain_withheld or "no change is worth 5 % of a step",
        remedy="iotrace tune -- CMD measures it" if rank.steps.count and rank.loaders else "",
        notes=_notes(rank),
    )


def _notes(rank: RankReport) -> list[str]:
    notes = []
    if rank.self_prediction_error_pct is not None:
        notes.append(f"the model gives the run's own wait {rank.self_prediction_error_pct:+.1f} %")
    if rank.gain:
        notes.append("gains do not add up; the step without a change is the measured one")
    for why in dict.fromkeys(row.withheld for row in rank.gain if row.withheld):
        notes.append(f"? {why}")
    return notes


def _shown(row: GainRow) -> ShownGain:
    text = row.text if row.kind == "knob" else f"{row.text} {row.change}"
    return ShownGain(**msgspec.structs.asdict(row), shown=text)
