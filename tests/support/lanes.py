"""Slices divided into the lanes that the writers give their rows."""

from __future__ import annotations

import numpy as np

from iotrace.timeline.model import Slice
from iotrace.timeline.writers.lanes import ROW, SLICE, Lanes

_LAST_NS = 2**63 - 1


def lanes(slices: list[Slice]) -> list[list[Slice]]:
    """Divide slices into lanes in which any two are disjoint or nested; each lane sorted, outer first."""
    ordered = sorted(slices, key=lambda item: (item.start_ns, -item.end_ns))
    rows = np.zeros(len(ordered), ROW)
    rows["kind"] = SLICE
    rows["start"] = [_as_int64(item.start_ns) for item in ordered]
    rows["end"] = [_as_int64(item.end_ns) for item in ordered]
    numbers = Lanes().assign(rows)
    found: list[list[Slice]] = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
    for item, lane in zip(ordered, numbers.tolist(), strict=True):
        found[lane].append(item)
    return found


def _as_int64(time_ns: int) -> int:
    """The time, or the last one that a column holds: damaged records may say more."""
    return max(-_LAST_NS, min(time_ns, _LAST_NS))
