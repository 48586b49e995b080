"""The track of the start: what the training process was in from its start on, imports module by module."""

from __future__ import annotations

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.startup.imports import imports_of
from iotrace.analysis.startup.waterfall import ranges_of
from iotrace.timeline.model import STARTUP, Slice

_SHORT_NS = 1_000_000  # a large library has thousands of modules


def startup_slices(analysis: RankAnalysis) -> list[Slice]:
    """Make slices of what lies before the first step and takes 1 ms or more; none without its imports."""
    imports = imports_of(analysis.rank.main)
    if analysis.startup is None or imports is None:
        return []
    until_ns = analysis.startup[1]
    return [
        Slice(each.start_ns, min(each.end_ns, until_ns), each.detail or each.name, STARTUP)
        for each in ranges_of(analysis, imports, *analysis.startup)
        if min(each.end_ns, until_ns) - each.start_ns >= _SHORT_NS
    ]
