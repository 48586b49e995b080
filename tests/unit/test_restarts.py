"""A restarted job: what is said of it as a whole is said of its last start."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import RankPart, analyse, rank_part
from iotrace.analysis.results import Recommendation
from iotrace.sources.session import open_session
from tests.support.fuzz import make_session


def start(part: RankPart, incarnation: int, wait_fraction: float | None) -> RankPart:
    """The part of a rank as one start left it; its steps last 100 ms, and none is known without a wait."""
    wait_ms = None if wait_fraction is None else 100 * wait_fraction
    wait = replace(part.report.data_wait, raw_ms=wait_ms, raw_wait_fraction=wait_fraction)
    wait = replace(wait, stall_fraction=None, exposed_ms=None, verdict="highly input-bound")
    steps = replace(part.report.steps, count=0 if wait_ms is None else 30, mean_ms=100.0, unknown_why=None)
    item = Recommendation(
        id="too-few-workers",
        severity="high",
        text="",
        evidence={},
        gain_ms_per_step=None,
        remedy=f"as start {incarnation} said",
        rank=0,
    )
    report = replace(part.report, incarnation=incarnation, data_wait=wait, steps=steps, gain=[], culprits=[])
    return replace(part, report=report, advice=[item])


def test_a_restarted_job_is_judged_by_its_last_start_that_trained(tmp_path: Path) -> None:
    analysis = SessionAnalysis(open_session(make_session(tmp_path / "session")))
    part = rank_part(analysis.ranks[0])
    found = analyse(analysis, [start(part, 0, 0.9), start(part, 1, 0.3), start(part, 2, None)])
    assert found.verdict.text == "INPUT-BOUND 30 % of each step waits for data (30.0 of 100.0 ms)"
    assert [fix.text for fix in found.verdict.fixes] == ["as start 1 said"]
    assert "no step was measured" not in found.verdict.trust.reasons
    assert [rank.incarnation for rank in found.ranks] == [0, 1, 2]
    assert found.main_rank is found.ranks[1]
    assert len(found.recommendations) == 3
