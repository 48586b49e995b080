"""Why the device was idle: each gap by when the kernel that ended it was launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.intervals import Coverage
from iotrace.sources.kineto.trace import Column

CLASSES = ("data_wait", "host_wait", "kernel_wait", "other")
KERNEL_GAP_US = 30.0  # HTA's
_DATA_WAIT, _HOST_WAIT, _KERNEL_WAIT, _OTHER = range(4)
_UNKNOWN_LAUNCH = -(2**62)


@dataclass(frozen=True)
class Gaps:
    """Gaps ``[start, end)`` in which nothing ran, each with the row of the event that ended it."""

    start_ns: Column
    end_ns: Column
    ended_by: Column

    def __len__(self) -> int:
        return len(self.start_ns)


def gaps_of(activity: Activity, rows: Column) -> Gaps:
    """The gaps between the given events of the device (a stream's, or all)."""
    events = activity.trace.events
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    starts, ends = events.start_ns[rows], np.maximum.accumulate(events.end_ns[rows])
    gap = np.flatnonzero(starts[1:] > ends[:-1])
    return Gaps(ends[gap], starts[gap + 1], rows[gap + 1])


def classify(activity: Activity, gaps: Gaps, waits: Coverage, kernel_gap_ns: int) -> Column:
    """Per gap (row) and class (column) ns; a row sums to its gap.

    `host_wait`: the kernel was launched after the gap had begun; `data_wait` is its part inside the raw data
    waits. Else `kernel_wait` where the gap is shorter than `kernel_gap_ns`, or `other`.
    """
    call = activity.launch[gaps.ended_by]
    starts = activity.trace.events.start_ns
    launched_ns = np.where(call >= 0, starts[np.maximum(call, 0)], _UNKNOWN_LAUNCH)
    lengths = gaps.end_ns - gaps.start_ns
    host = launched_ns > gaps.start_ns
    short = ~host & (lengths < kernel_gap_ns)
    table = np.zeros((len(gaps), len(CLASSES)), dtype=np.int64)
    table[:, _DATA_WAIT] = np.where(host, waits.within(gaps.start_ns, gaps.end_ns), 0)
    table[:, _HOST_WAIT] = np.where(host, lengths, 0) - table[:, _DATA_WAIT]
    table[:, _KERNEL_WAIT] = np.where(short, lengths, 0)
    table[:, _OTHER] = np.where(host | short, 0, lengths)
    return table
