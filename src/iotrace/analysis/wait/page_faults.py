"""Reads by page faults: blocked time of a sample's making that memory maps caused, and their files.

No call reads a mapped file. A thread that touches a page which is not in memory takes a major fault and
sleeps until it is read; that is often outside every read path, where a view is converted or copied. Of the
time that a dataset's ``__getitem__`` slept (was off its CPU and not waiting for one), the part due to major
faults is their share among its voluntary context switches: each such sleep is a switch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Intervals, Times, distinct, holding
from iotrace.session.names import KIND_MAPPED
from iotrace.sources.columns import Columns

Fractions = npt.NDArray[np.float64]


def bounds(spans: Columns) -> Intervals:
    """When each began and ended."""
    return spans["start_ns"], spans["start_ns"] + spans["duration_ns"]


def page_faults(items: Columns, read_paths: Columns, posix: Coverage) -> Fractions:
    """Find the fraction of each item's own time that was read by page faults.

    `items` are disjoint on each thread, and so are `read_paths`. An item's own time is what lies outside
    calls and read paths.
    """
    inside = holder(items, read_paths["start_ns"], read_paths["tid"])
    own = {
        name: items[name].astype(np.int64) - _sums(inside, read_paths[name], len(items))
        for name in ("duration_ns", "cpu_ns", "major_faults", "voluntary_switches")
    }
    delay = np.maximum(items["run_delay_ns"], 0)
    own_delay = delay - _sums(inside, np.maximum(read_paths["run_delay_ns"], 0), len(items))
    in_calls = posix.within(*bounds(read_paths))
    calls = posix.within(*bounds(items)) - _sums(inside, in_calls, len(items))
    outside = np.maximum(own["duration_ns"] - calls, 0)
    blocked = np.clip(own["duration_ns"] - own["cpu_ns"] - own_delay - calls, 0, outside)
    switches = own["voluntary_switches"]
    by_faults = np.divide(
        np.clip(own["major_faults"], 0, switches), switches, out=np.zeros(len(items)), where=switches > 0
    )
    found: Fractions = np.divide(blocked * by_faults, outside, out=np.zeros(len(items)), where=outside > 0)
    return found


def _sums(holder: Times, values: Times, count: int) -> Times:
    """Per holder the sum of the values that it holds; a holder of -1 is none."""
    held = holder >= 0
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, holder[held], values[held].astype(np.int64))
    return sums


def holder(items: Columns, span_starts: Times, tids: Times) -> Times:
    """Find the row of the item inside which each span began, on the same thread; -1 where there is none."""
    makers, begins = distinct(items["tid"]), items["start_ns"]
    if len(makers) == 1 and (tids == makers[0]).all() and (begins[1:] > begins[:-1]).all():
        return holding(begins, begins + items["duration_ns"], span_starts)
    found = np.full(len(span_starts), -1, dtype=np.int64)
    for tid in makers:
        rows = np.flatnonzero(items["tid"] == tid)
        rows = rows[np.argsort(items["start_ns"][rows])]
        own = np.flatnonzero(tids == tid)
        starts = items["start_ns"][rows]
        at = holding(starts, starts + items["duration_ns"][rows], span_starts[own])
        found[own] = np.append(rows, -1)[at]
    return found


def touched(spans: Columns, items: Columns) -> tuple[Times, Times, Fractions]:
    """Find the mapped files that items accessed: the item's row, sorted, the file, its share of the bytes."""
    mapped = spans[(spans["kind"] == KIND_MAPPED) & (spans["file"] >= 0) & (spans["bytes"] > 0)]
    item = holder(items, mapped["start_ns"], mapped["tid"])
    mapped, item = mapped[item >= 0], item[item >= 0]
    of_file = np.lexsort((mapped["file"], item))
    item, file, size_bytes = item[of_file], mapped["file"][of_file], mapped["bytes"][of_file]
    first = np.flatnonzero(np.append(True, (item[1:] != item[:-1]) | (file[1:] != file[:-1]))[: len(item)])
    sums_bytes = np.add.reduceat(size_bytes, first) if len(first) else size_bytes
    whole_bytes = np.bincount(item, size_bytes, len(items))
    return item[first], file[first].astype(np.int64), sums_bytes / whole_bytes[item[first]]
