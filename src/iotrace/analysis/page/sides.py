"""The steps of one of two runs that are compared, and which of them are slow."""

from __future__ import annotations

import msgspec

from iotrace.analysis.page.series import step_columns, step_numbers
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results.top import StepColumns
from iotrace.analysis.wait.loop_events import loop_events
from iotrace.analysis.wait.slow_loop_steps import loop_slow_steps


class SlowMark(msgspec.Struct, frozen=True):
    """A slow step: its place among the steps, its number in the timeline, its length, what made it long."""

    place: int
    step: int
    ms: float
    cause: str | None
    file: str | None


class SideSteps(msgspec.Struct, frozen=True):
    """All steps of a rank; its slow ones, the slowest first."""

    columns: StepColumns
    slow: list[SlowMark]


def side_steps(session: SessionAnalysis, rank: int) -> SideSteps | None:
    """Make the columns of the rank's steps, of its last start; None where it has none."""
    analysis = next((each for each in reversed(session.ranks) if each.rank.number == rank), None)
    if analysis is None:
        return None
    columns = step_columns(analysis, analysis.source is not None and not analysis.loop.unknown_why)
    if columns is None:
        return None
    places = {number: place for place, number in enumerate(step_numbers(analysis.loop.steps))}
    found = loop_slow_steps(analysis, events=loop_events(analysis))
    return SideSteps(
        columns,
        [
            SlowMark(
                places[each.step],
                each.step,
                each.ms,
                max(each.parts_ms, key=lambda part: each.parts_ms[part], default=None),
                each.file,
            )
            for each in (found.steps if found is not None else ())
            if each.step in places
        ],
    )
