"""Arithmetic of half-open intervals in integer nanoseconds, over whole columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.sources.columns import held

Times = npt.NDArray[np.int64]
Intervals = tuple[Times, Times]  # starts and ends
_NO_RANGE = -1
_LONG_AGO = -(2**62)
_MOST_ROWS = 1 << 15


def union(starts: Times, ends: Times) -> Intervals:
    """The sorted, disjoint, non-touching intervals that cover the same instants. Empty ones vanish."""
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if (starts[1:] > ends[:-1]).all():  # as a thread makes them
        return starts.astype(np.int64), ends.astype(np.int64)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    ends = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], ends[last]


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """What two sets of sorted, disjoint intervals both cover."""
    return pieces(*first, *second)[:2]


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """What of the first set of sorted, disjoint intervals the second one does not cover."""
    if not len(first[0]) or not len(second[0]):
        return first
    low = min(first[0][0], second[0][0]) - 1
    high = max(first[1][-1], second[1][-1]) + 1
    return intersect(first, (np.concatenate(([low], second[1])), np.concatenate((second[0], [high]))))


def length(intervals: Intervals) -> int:
    """The length of disjoint intervals together."""
    starts, ends = intervals
    return int((ends - starts).sum())


class Coverage:
    """How much of any window a set of intervals covers."""

    def __init__(self, starts: Times, ends: Times) -> None:
        self.starts, self.ends = union(starts, ends)
        self._before = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        self._until = np.concatenate(([_LONG_AGO], self.ends))

    def _measure(self, times: Times) -> Times:
        """How much is covered before each time."""
        if not len(self.starts):
            return np.zeros(len(times), np.int64)
        index = np.searchsorted(self.starts, times, side="right")
        over = self._until[index]
        over -= times
        np.maximum(over, 0, out=over)
        covered: Times = self._before[index]
        covered -= over
        return covered

    def within(self, starts: Times, ends: Times) -> Times:
        """The covered length of each window ``[starts[i], ends[i])``."""
        return self._measure(np.maximum(ends, starts)) - self._measure(starts)


class Shares:
    """Divides each instant equally among the intervals that hold it, optionally outside a mask.

    An interval's share is the integral of 1 / (number of intervals at that instant) over it.
    """

    def __init__(self, starts: Times, ends: Times, mask: Coverage | None = None) -> None:
        self._mask = mask
        # Most are one behind the other, as a thread makes them: each has its instants alone.
        self._alone = bool((ends >= starts).all() and (starts[1:] >= ends[:-1]).all())
        if self._alone:
            return
        times = distinct(np.concatenate([starts, ends, *([] if mask is None else [mask.starts, mask.ends])]))
        self._times = times
        steps = np.zeros(len(times), dtype=np.int64)
        np.add.at(steps, np.searchsorted(times, starts), 1)
        np.add.at(steps, np.searchsorted(times, ends), -1)
        active = np.cumsum(steps)[:-1]
        length = np.diff(times)
        if mask is not None:
            length = length - mask.within(times[:-1], times[1:])
        density = np.divide(length, active, out=np.zeros(len(length)), where=active > 0)
        self._integral = np.concatenate(([0.0], np.cumsum(density)))

    def of(self, starts: Times, ends: Times) -> npt.NDArray[np.float64]:
        """The share in ns of intervals that were among those given, or of pieces of them cut at windows."""
        if self._alone:
            masked = 0 if self._mask is None else self._mask.within(starts, ends)
            return np.asarray(ends - starts - masked, dtype=np.float64)
        return np.asarray(self._at(ends) - self._at(starts), dtype=np.float64)

    def _at(self, times: Times) -> npt.NDArray[np.float64]:
        origin = self._times[0]
        known = (self._times - origin).astype(np.float64)
        return np.asarray(np.interp((times - origin).astype(np.float64), known, self._integral))


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The different integers, sorted; ``np.unique`` hashes them, which takes up to 70 times as long."""
    if len(values) and (values == values[0]).all():
        return values[:1]
    values = np.sort(values)
    found: npt.NDArray[Any] = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return found


def grouped(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Times, Times]:
    """The different integers, sorted, where each stands first, and the row of each value among them.

    Those of a small range by a table instead of a sort.
    """
    if (values[1:] > values[:-1]).all():
        rows = held(np.arange(len(values)))
        return values, rows, rows
    least, most = int(values.min()), int(values.max())
    if most - least > 4 * len(values):
        known, first, of = np.unique(values, return_index=True, return_inverse=True)
        return known, first, of.reshape(-1)
    found = np.full(most - least + 1, -1, np.int64)
    place = values.astype(np.int64) - least
    found[place[::-1]] = np.arange(len(values))[::-1]  # the last one that is written stays: the first
    seen = found >= 0
    return (np.flatnonzero(seen) + least).astype(values.dtype), found[seen], (np.cumsum(seen) - 1)[place]


def ranges(first: Times, behind: Times) -> tuple[Times, Times]:
    """Return all numbers of the ranges ``[first[i], behind[i])``, one after the other, and the i of each."""
    counts = np.maximum(behind - first, 0)
    if (counts == 1).all():  # as most are
        return first, np.arange(len(first))
    of = np.repeat(np.arange(len(first)), counts)
    return np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts) + first[of], of


def pieces(
    starts: Times, ends: Times, window_starts: Times, window_ends: Times
) -> tuple[Times, Times, Times, Times]:
    """Cut intervals at disjoint, sorted windows.

    Returns the pieces' starts and ends, the interval each comes from and the window it lies in.
    """
    first = np.searchsorted(window_ends, starts, side="right")
    behind = np.searchsorted(window_starts, ends, side="left")
    window, interval = ranges(first, behind)
    piece_starts = np.maximum(starts[interval], window_starts[window])
    piece_ends = np.minimum(ends[interval], window_ends[window])
    keep = piece_ends > piece_starts
    if keep.all():
        return piece_starts, piece_ends, interval, window
    return piece_starts[keep], piece_ends[keep], interval[keep], window[keep]


def split_exactly(totals: Times, weights: npt.NDArray[np.float64]) -> Times:
    """Divide integers pro rata, by rows of `weights`, into integers that sum to them (largest remainder)."""
    if len(totals) > _MOST_ROWS:  # some at a time stay in the CPU's cache
        found = np.empty(weights.shape, np.int64, order="F")
        for first in range(0, len(totals), _MOST_ROWS):
            own = slice(first, first + _MOST_ROWS)
            found[own] = split_exactly(totals[own], weights[own])
        return found
    count = weights.shape[1]
    whole = np.cumsum(weights, axis=1)[:, -1:]
    divided = (totals[:, None] > 0) & (whole > 0)
    exact = np.divide(totals[:, None] * weights, whole, out=np.zeros(weights.shape), where=divided)
    parts = exact.astype(np.int64)
    missing = np.where(divided, totals[:, None] - parts.sum(axis=1, keepdims=True), 0)
    by_remainder = np.argsort(parts - exact, axis=1, kind="stable")
    place = np.empty_like(by_remainder)
    np.put_along_axis(place, by_remainder, np.arange(count)[None, :], axis=1)
    return np.asarray(parts + (place < missing))


def holding(starts: Times, ends: Times, times: Times) -> Times:
    """Per time the index of the last range, of sorted ones, that begins up to it; -1 where it has ended."""
    found = np.searchsorted(starts, times, side="right")
    found -= 1
    for first in range(0, len(times) if len(ends) else 0, _MOST_ROWS):
        own = found[first : first + _MOST_ROWS]  # before the first range it is none already
        own[times[first : first + _MOST_ROWS] >= ends[own]] = _NO_RANGE
    return found


def innermost(starts: Times, ends: Times, times: Times) -> Times:
    """Per time the index of the innermost range ``[start, end)`` that holds it, -1 where none does.

    Of ranges that overlap without nesting the later one counts, to its end.
    """
    order = outer_first(starts, ends)
    begun = np.searchsorted(starts[order], times, side="right") - 1
    return np.asarray(np.append(order, _NO_RANGE)[_last_above(ends[order], begun, times)])


def less_inner(starts: Times, ends: Times, amounts: Times) -> Times:
    """Return what each range has of `amounts` itself, without the ranges directly inside of it.

    The ranges are a thread's. One that begins in another one is inside of it, wherever it ends.
    """
    order = outer_first(starts, ends)
    own_starts, own_ends = starts[order], ends[order]
    around = _last_above(own_ends, np.arange(len(order)) - 1, own_starts)
    inside = np.flatnonzero(around >= 0)
    found = amounts.astype(np.int64)
    np.subtract.at(found, order[around[inside]], amounts[order[inside]])
    return found


def outer_first(starts: Times, ends: Times) -> Times:
    """Order ranges by their starts, of those that start together the longest first.

    Events lie almost in order: a sort by starts alone is linear there, one by two keys is not.
    """
    order = np.argsort(starts, kind="stable")
    tied = np.diff(starts[order], prepend=starts[order[:1]] - 1) == 0
    tied[:-1] |= tied[1:]
    at = np.flatnonzero(tied)
    order[at] = order[at][np.lexsort((-ends[order[at]], starts[order[at]]))]
    return order


def _last_above(values: Times, last: Times, bounds: Times) -> Times:
    """Per bound the last index, of those up to `last`, whose value is above the bound; -1 where none is."""
    found: Times = last.copy()
    rows = np.flatnonzero(found >= 0)
    rows = rows[values[found[rows]] <= bounds[rows]]
    if not len(rows):
        return found
    # Up a tree of maxima while all to the left of a node are too small, then down along the right children.
    maxima = [values]
    while len(maxima[-1]) > 1:
        pairs = np.append(maxima[-1], np.iinfo(np.int64).min) if len(maxima[-1]) % 2 else maxima[-1]
        maxima.append(pairs.reshape(-1, 2).max(axis=1))
    node, bound = found[rows], bounds[rows]
    height = np.full(len(rows), _NO_RANGE)
    climbing = np.arange(len(rows))
    for level, largest in enumerate(maxima):
        at = node[climbing]
        is_above = (at % 2 == 1) & (largest[np.maximum(at - 1, 0)] > bound[climbing])
        node[climbing] = np.where(is_above, at - 1, at // 2)
        height[climbing[is_above]] = level
        climbing = climbing[~is_above]
    for level in range(len(maxima) - 1, 0, -1):
        falling = np.flatnonzero(height >= level)
        right = 2 * node[falling] + 1
        below = maxima[level - 1]
        is_above = (right < len(below)) & (below[np.minimum(right, len(below) - 1)] > bound[falling])
        node[falling] = np.where(is_above, right, right - 1)
    found[rows] = np.where(height >= 0, node, _NO_RANGE)
    return found
