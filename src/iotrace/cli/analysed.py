"""Reports that several commands ask for: of a session, or of bare traces, with progress on standard error."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from iotrace.report.printing import echo, watched

if TYPE_CHECKING:
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.results import Report
    from iotrace.cluster import Cluster

_KERNEL_GAP_US = 30.0  # as analysis has it, whose import takes numpy's


def analysed(
    path: Path, kernel_gap_us: float = _KERNEL_GAP_US, cluster: Cluster | None = None
) -> tuple[SessionAnalysis, Report]:
    """Read and analyse the session at `path`; returns its analysis and its report."""
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.report import RankPart, analyse
    from iotrace.analysis.tasks import part_of_rank
    from iotrace.session.liveness import RUNNING
    from iotrace.sources.session import open_session

    with watched() as progress:
        session = open_session(path, progress)
        progress("finding the causes")
        analysis = SessionAnalysis(session, kernel_gap_us)
        parts: list[RankPart] = []
        if cluster is not None and session.state != RUNNING:  # then each would see another part of it
            cluster.check_sees([path])
            do = partial(part_of_rank, path, kernel_gap_us, uuid4().hex)
            parts = cluster.map(do, [rank.name for rank in session.ranks])
        return analysis, analyse(analysis, parts)


def report_of_traces(
    paths: tuple[Path, ...], kernel_gap_us: float = _KERNEL_GAP_US, cluster: Cluster | None = None
) -> Report:
    """Read and analyse traces, one for each rank."""
    from iotrace import compiled
    from iotrace.analysis.traces import analyse_traces, report_of_computed
    from iotrace.sources.kineto.reader import read_kineto

    traces = []
    with watched() as progress:
        if cluster is not None:
            from iotrace.analysis.tasks import figures_of_trace

            cluster.check_sees(paths)
            return report_of_computed(cluster.map(partial(figures_of_trace, kernel_gap_us), paths))
        for path in paths:
            progress(f"reading {path}")
            traces.append(read_kineto(path))
        if not compiled.available():
            note = compiled.missing("reading traces gives the same result ten to twenty times slower")
            echo(f"iotrace: {note}", err=True)
        progress("finding out what the accelerator did")
        return analyse_traces(traces, kernel_gap_us)
