"""What a page shows beside the report: one rank's steps, batches and samples, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from iotrace.analysis.page.series import batch_window, sampled_series, step_columns
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.results import Report
from iotrace.analysis.results.top import RankColumns
from iotrace.errors import IotraceError
from iotrace.sources.session import open_session


def columns_of(analysis: SessionAnalysis, report: Report) -> RankColumns | None:
    """Choose the rank that the verdict is about, else the first; None where no process was seen."""
    pairs, about = zip(analysis.ranks, report.ranks, strict=True), report.main_rank
    found = next((one for one, rank in pairs if rank is about), None)
    if found is None and not analysis.ranks:
        return None
    return rank_columns(found or analysis.ranks[0])


def columns_of_runs(sessions: Iterable[str]) -> dict[str, RankColumns]:
    """Make the columns of the first rank of each session that is still there, by path."""
    found = {}
    for path in sessions:
        try:
            analysis = SessionAnalysis(open_session(Path(path)))
        except IotraceError:  # the figures were kept, the session was not
            continue
        if analysis.ranks:
            found[path] = rank_columns(analysis.ranks[0])
    return found


def rank_columns(analysis: RankAnalysis) -> RankColumns:
    """Make the columns of one rank."""
    known = analysis.source is not None and not analysis.loop.unknown_why
    return RankColumns(
        rank=analysis.rank.number,
        incarnation=analysis.rank.incarnation,
        steps=step_columns(analysis, known),
        window=batch_window(analysis) if known else None,
        series=sampled_series(analysis),
    )
