"""How long the threads that make batches wait for a lock of a library, which lets one in at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, distinct, holding
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.chains import makers_of
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import outermost
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process

_H5PY = "h5py."  # how the names of its read paths begin


def locked_of(analysis: RankAnalysis, own: Deliveries) -> tuple[npt.NDArray[np.float64], int]:
    """Find how long the maker of each batch waited for h5py's lock, in ns; and how many threads share it.

    A thread that sleeps in a call of h5py outside POSIX calls, while another thread of its process is in
    one, waits for that one: h5py holds one lock for all files.
    """
    locked_ns, sharing = np.zeros(len(own)), 0
    makers, main_pid = makers_of(own, analysis.rank.main.pid), analysis.rank.main.pid
    pids = own.maker(main_pid)
    for process in analysis.rank.processes:
        mine = np.flatnonzero(own.made & (pids == process.pid))
        reading = _in_h5py(process)
        tids = distinct(reading["tid"])
        if not len(mine) or len(tids) < 2:
            continue
        sharing = max(sharing, len(tids))
        waits_ns = _waits(analysis, process, reading)
        for tid in tids.tolist():
            of_thread = mine[makers[mine] == (process.pid << 32) + tid]
            of_thread = of_thread[np.argsort(own["taken_ns"][of_thread], kind="stable")]
            spans = np.flatnonzero(reading["tid"] == tid)
            at = holding(
                own["taken_ns"][of_thread], own["prepared_ns"][of_thread], reading["start_ns"][spans]
            )
            np.add.at(locked_ns, of_thread[at[at >= 0]], waits_ns[spans[at >= 0]])
    return locked_ns, sharing


def _in_h5py(process: Process) -> Columns:
    spans = process.spans
    numbers = [number for number, text in process.texts.items() if text.startswith(_H5PY)]
    chosen = (spans["kind"] == KIND_READ_PATH) & np.isin(spans["name"], numbers)
    return spans[outermost(spans, chosen)]


def _waits(analysis: RankAnalysis, process: Process, reading: Columns) -> npt.NDArray[np.int64]:
    """How long each call slept outside POSIX calls while another thread was in one."""
    starts, ends = bounds(reading)
    calls = analysis.session.calls_of(process)
    found = np.zeros(len(starts), np.int64)
    for tid in distinct(reading["tid"]).tolist():
        own, others = reading["tid"] == tid, reading["tid"] != tid
        in_calls = calls.where(calls.tid == tid)
        posix_ns = Coverage(in_calls.start_ns, in_calls.end_ns).within(starts[own], ends[own])
        delay_ns = np.maximum(reading["run_delay_ns"][own], 0)
        slept_ns = reading["duration_ns"][own] - reading["cpu_ns"][own] - delay_ns - posix_ns
        beside_ns = Coverage(starts[others], ends[others]).within(starts[own], ends[own])
        switched = reading["voluntary_switches"][own] > 0
        found[own] = np.where(switched, np.clip(np.minimum(slept_ns, beside_ns), 0, None), 0)
    return found
