"""What made the samples of a loader: its thread, asleep or computing; libraries on threads of their own."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import holding
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.table import taken
from iotrace.analysis.wait.page_faults import holder
from iotrace.analysis.wait.production import outermost, outermost_of
from iotrace.session.names import KIND_ITEM, KIND_READ_PATH
from iotrace.sources.run_delays import run_delays


def samples_made(analysis: RankAnalysis, run: LoaderRun) -> tuple[float | None, float | None, float, float]:
    """The shares of the making of a loader's samples in which its thread slept, and in which it computed.

    The last two are of libraries that work on threads of their own: their calls, which the first two leave
    out, and in these the CPU time of the process. What such calls waited for a CPU is in none.
    """
    totals = np.zeros(5)
    made = run.deliveries[run.deliveries.made]
    makers = made.maker(analysis.rank.main.pid)
    for process in analysis.rank.processes:
        windows = made[makers == process.pid]
        windows = windows[np.lexsort((windows["prepared_ns"], windows["taken_ns"]))]
        spans = process.spans
        items = outermost_of(spans, KIND_ITEM)
        items = items[(items["cpu_ns"] >= 0) & (items["run_delay_ns"] >= 0)]
        if not len(windows) or not len(items):
            continue
        items = items[holding(windows["taken_ns"], windows["prepared_ns"], items["start_ns"]) >= 0]
        calls = taken(
            spans, outermost(spans, (spans["kind"] == KIND_READ_PATH) & (spans["run_delay_ns"] < 0))
        )
        calls = calls[holder(items, calls["start_ns"], calls["tid"]) >= 0]
        delayed = np.maximum(run_delays(process, calls), 0).sum()
        totals += [
            *(items["duration_ns"].sum(), items["cpu_ns"].sum(), items["run_delay_ns"].sum() + delayed),
            *(calls["duration_ns"].sum() - delayed, calls["cpu_ns"].sum()),
        ]
    whole, cpu, delayed, threaded, threaded_cpu = totals.tolist()
    if not whole:
        return None, None, 0.0, 0.0
    asleep, on_cpu = whole - threaded - cpu - delayed, cpu - threaded_cpu
    return max(0.0, asleep / whole), max(0.0, on_cpu / whole), threaded / whole, threaded_cpu / whole
