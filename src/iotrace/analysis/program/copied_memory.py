"""Memory that forked workers copied of the training process's.

A worker shares all pages with its parent until one of both writes to them. To use a Python object is to write
its reference count. The kernel's account of a process (`smaps_rollup`) has its anonymous memory, which a fork
inherits, and what of its memory is private and written.
"""

from __future__ import annotations

import numpy as np

from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.samples import MemoryRecord
from iotrace.sources.telemetry import SampledProcess

_NUMBER, _ANONYMOUS, _, _DIRTY = range(4)  # of a process in a record of memory


def copied_bytes(analysis: RankAnalysis) -> list[int]:
    """What each forked worker had copied when it was last looked at, at least; without those never seen."""
    telemetry, main = analysis.telemetry, analysis.sampled
    if telemetry is None or main is None:
        return []
    found = []
    for process in analysis.rank.workers:
        worker = telemetry.process_of(process)
        if worker is not None and process.identity.role == "forked":
            own = copied(worker, main, telemetry.memory)
            found += [] if own is None else [own]
    return found


def copied(worker: SampledProcess, main: SampledProcess, records: list[MemoryRecord]) -> int | None:
    """What a forked worker had copied of its parent's memory in the last of these records that has both."""
    for record in reversed(records):
        rows = {row[_NUMBER]: row for row in record.processes}
        if worker.number in rows and main.number in rows:
            inherited = rows[main.number][_ANONYMOUS] - _grown_since(main, worker.start_ns)
            own = max(0, rows[worker.number][_ANONYMOUS] - inherited)  # what it made itself is written, too
            return max(0, int(rows[worker.number][_DIRTY] - own))
    return None


def _grown_since(process: SampledProcess, time_ns: int) -> float:
    """What a process's memory grew by since then, at most."""
    resident = process.series("rss_bytes")
    if resident is None:
        return 0.0
    before = resident.value[: max(1, int(np.searchsorted(resident.time_ns, time_ns, side="right")))]
    return max(0.0, float(resident.value.max() - before[-1]))
