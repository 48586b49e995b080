"""What another process does for a report: read a session or a trace, and make the part of one rank."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import RankPart, rank_part
from iotrace.analysis.traces import TracePart, trace_part
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session


def part_of_rank(path: Path, kernel_gap_us: float, job: str, rank: str) -> RankPart:
    """Make the part of the rank called so; the session at `path` is read once in `job`."""
    analysis = _analysis(path, kernel_gap_us, job)
    return rank_part(next(one for one in analysis.ranks if one.rank.name == rank))


def part_of_trace(kernel_gap_us: float, path: Path) -> TracePart:
    """Read the trace at `path` and make its part."""
    return trace_part(read_kineto(path), kernel_gap_us)


@lru_cache(maxsize=1)
def _analysis(path: Path, kernel_gap_us: float, job: str) -> SessionAnalysis:
    """Read a session; another `job` reads it again, as it may have changed since."""
    return SessionAnalysis(open_session(path), kernel_gap_us)
