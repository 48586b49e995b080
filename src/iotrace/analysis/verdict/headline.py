"""What is kept of a report for lists."""

from __future__ import annotations

from iotrace.analysis.results import Report
from iotrace.session.listing import Headline


def headline_of(report: Report) -> Headline:
    """Return what a list shows of `report`: its verdict, and the figures of the rank that it is about."""
    found = report.verdict
    rank = report.main_rank or next(iter(report.ranks), None)
    why = None if found.why is None else _readable(found.why)
    return Headline(
        verdict_class=found.kind,
        why=why,
        file=None if found.file is None else _readable(found.file),
        rank=found.rank,
        ranks=len(report.ranks) or None,
        step_ms=None if rank is None else rank.steps.mean_ms,
        steps_per_second=None if rank is None else rank.steps.per_second,
        wait_fraction=None if rank is None else rank.data_wait.raw_wait_fraction,
    )


def _readable(text: str) -> str:
    """The name of a file may be any bytes, and what is kept is UTF-8."""
    return text.encode(errors="replace").decode()
