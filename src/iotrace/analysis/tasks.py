"""What another process does for a report: read a session or a trace, and make the part of one rank."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who reads traces pays for no session, and the other way round
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.report import RankPart
    from iotrace.analysis.traces import TracePart


def part_of_rank(path: Path, kernel_gap_us: float, job: str, rank: str) -> RankPart:
    """Make the part of the rank called so; the session at `path` is read once in `job`."""
    from iotrace.analysis.report import rank_part

    analysis = _analysis(path, kernel_gap_us, job)
    return rank_part(next(one for one in analysis.ranks if one.rank.name == rank))


def part_of_trace(kernel_gap_us: float, path: Path) -> TracePart:
    """Read the trace at `path` and make its part."""
    from iotrace.analysis.traces import trace_part
    from iotrace.sources.kineto.reader import read_kineto

    return trace_part(read_kineto(path), kernel_gap_us)


@lru_cache(maxsize=1)
def _analysis(path: Path, kernel_gap_us: float, job: str) -> SessionAnalysis:
    """Read a session; another `job` reads it again, as it may have changed since."""
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.sources.session import open_session

    return SessionAnalysis(open_session(path), kernel_gap_us)
