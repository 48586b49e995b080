"""What the thread that trains computed, and how long it waited for a CPU, by the kernel's account of it."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.analysis.rank import RankAnalysis
from iotrace.session import names

_FEWEST = 4  # backward passes and optimizer's steps: each is noted with the account at its end


class ThreadCpu(msgspec.Struct, frozen=True):
    """CPU time, and time in which the thread was ready to run without a CPU, in ns; None: not known."""

    cpu_ns: float | None = None
    run_delay_ns: float | None = None


def thread_cpu(analysis: RankAnalysis, begin: int, end: int) -> ThreadCpu:
    """Return the account of the thread that trains in ``[begin, end)``, session time."""
    main, thread = analysis.rank.main, analysis.loop.thread
    if thread is None:
        return ThreadCpu()
    rounds = main.rows(names.ROUND_ROW)
    rows = np.flatnonzero(rounds["tid"] == thread.tid)
    times: Times = main.clock.times_to_session_ns(rounds["mono_ns"][rows])
    rows = rows[(times >= begin) & (times < end)]
    if len(rows) < _FEWEST:
        return ThreadCpu()
    first, last = rounds[rows[[0, -1]]]
    length = float(last["mono_ns"] - first["mono_ns"])
    scale = (end - begin) / length if length > 0 else 0.0

    def grown(field: str) -> float | None:
        if first[field] < 0 or last[field] < first[field]:
            return None
        return float(last[field] - first[field]) * scale

    return ThreadCpu(grown("cpu_ns"), grown("run_delay_ns"))


def cpu_by_step(analysis: RankAnalysis, starts: Times, ends: Times) -> tuple[Times, Times]:
    """Return what the thread that trains computes in each step, and waits for a CPU, in ns.

    Between two rounds of training its account is taken as growing evenly. Empty where it is not known.
    """
    main, thread = analysis.rank.main, analysis.loop.thread
    nothing = np.empty(0, np.int64)
    if thread is None:
        return nothing, nothing
    rounds = main.rows(names.ROUND_ROW)
    rounds = rounds[rounds["tid"] == thread.tid]
    times = main.clock.times_to_session_ns(rounds["mono_ns"])

    def grown(field: str) -> Times:
        if len(rounds) < _FEWEST or (rounds[field] < 0).any():
            return nothing
        at_start, at_end = (np.interp(each, times, rounds[field]) for each in (starts, ends))
        grown_ns: Times = (at_end - at_start).astype(np.int64)
        return grown_ns

    return grown("cpu_ns"), grown("run_delay_ns")
