"""How far the figures of a report can be relied on, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.results import RankReport, SessionInfo, Trust

FEW_STEPS = 20
NOTICEABLE_PERCENT = 2.0  # of a step, spent on tracing


def trust_of(session: SessionInfo, ranks: Sequence[RankReport]) -> Trust:
    """Judge the figures of `ranks`."""
    measured = min((rank.steps.count for rank in ranks), default=0)
    costs = [rank.overhead.estimated_pct_of_step for rank in ranks if rank.overhead is not None]
    known = [cost for cost in costs if cost is not None]
    doubts = []
    if measured < FEW_STEPS:
        doubts.append(f"{measured} steps measured")
    if known and max(known) >= NOTICEABLE_PERCENT:
        doubts.append(f"tracing <= {max(known):.0f} % of a step")
    if not session.complete:
        doubts.append("part of the data was lost")
    if doubts:
        return Trust(level="caution", reasons=doubts)
    facts = [f"{measured} steps"]
    if known:
        facts.append(f"tracing <= {max(max(known), 0.1):.1f} %")
    return Trust(level="ok", reasons=facts)
