"""When the training thread compiles functions in the loop, and which: by jax.jit, or by torch.compile.

Definitions: docs/definitions.md, "loop_events".
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from iotrace.analysis.intervals import Intervals, Times, distinct, intersect, length, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.session import names
from iotrace.sources.records import StepCall

COMPILERS = {"jit": "jax.jit", "compilation": "torch.compile"}  # by what is recorded of them
_MOSTLY = 0.5  # of the time


def pauses_of(analysis: RankAnalysis, *pauses: str) -> Intervals:
    """When Python collected garbage, which stops all threads, or the training thread compiled."""
    main, thread = analysis.rank.main, analysis.loop.thread
    rows = main.rows(names.PAUSE_ROW)
    rows = rows[np.isin(rows["pause"], [names.PAUSES.index(pause) for pause in pauses])]
    if thread is not None:
        rows = rows[(rows["tid"] == thread.tid) | (rows["tid"] == -1)]
    starts, ends = (main.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    return union(starts, ends)


def compiler_of(analysis: RankAnalysis, during: Intervals) -> str:
    """Name what compiled for most of this time."""
    spent = {pause: length(intersect(pauses_of(analysis, pause), during)) for pause in COMPILERS}
    return COMPILERS[max(spent, key=lambda pause: spent[pause])]


def compiled_in(analysis: RankAnalysis, during: Intervals) -> str | None:
    """Name the compiled function that the loop calls for most of this time, and where; None: not known."""
    main = analysis.rank.main
    rows = main.rows(names.TURN_ROW)
    starts, ends = (main.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    spent: Counter[str] = Counter()
    sites = {each.site: each for each in main.of_type(StepCall) if each.kind != "awaits"}
    for site in sites.values():
        own = rows["site"] == site.site
        at = f"{analysis.session.paths.shown(site.file)}:{site.line}"
        spent[f"{site.called} ({at})"] += length(intersect(union(starts[own], ends[own]), during))
    name, ns = spent.most_common(1)[0] if spent else ("", 0)
    return name if ns and ns >= _MOSTLY * length(during) else None


def late_steps(steps: Times, count: int) -> int:
    """In how many of these steps of a loop it is past half of its `count`."""
    return int((distinct(steps) >= count / 2).sum())
