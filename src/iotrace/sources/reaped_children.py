"""Take from a process's samples what the kernel added to them for children that it waited for.

Linux adds a child's account of I/O to its parent's when the parent takes its exit code: what a worker read
would count twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.sources.samples import ProcessRecord

_SOON = 300  # samples, a minute: a child that ended is waited for in that
_COUNTERS = ("rchar", "wchar", "read_calls", "write_calls", "read_bytes", "write_bytes")


def without_reaped(records: Sequence[ProcessRecord], samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `samples`, sorted by process, without what ended children have added to their parents'.

    A child was waited for at the first of its parent's samples behind its own last one at which all counters
    have grown by what the child had then.
    """
    children: dict[int, list[ProcessRecord]] = defaultdict(list)
    for record in records:
        children[record.ppid].append(record)
    found: npt.NDArray[Any] = samples.copy()
    for record in records:
        own = _rows(record, found)
        for child in children.get(record.pid, []):
            theirs = _rows(child, samples)
            if child.start_ns >= record.start_ns and len(theirs) and len(own):
                _take(own, theirs[-1])
    return found


def _rows(record: ProcessRecord, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    first, behind = np.searchsorted(samples["process"], [record.number, record.number + 1]).tolist()
    own: npt.NDArray[Any] = samples[first:behind]  # a view
    return own


def _take(own: npt.NDArray[Any], last: np.void) -> None:
    if any(last[name] < 0 for name in _COUNTERS):
        return
    first = int(np.searchsorted(own["time_ns"], last["time_ns"], side="right"))
    near = own[max(0, first - 1) : first + _SOON]
    grown = np.all([np.diff(near[name]) >= last[name] for name in _COUNTERS], axis=0)
    at = np.flatnonzero(grown)
    if len(at) and any(last[name] for name in _COUNTERS):
        for name in _COUNTERS:
            own[name][max(0, first - 1) + int(at[0]) + 1 :] -= last[name]
