"""Operators by name: what each cost the host, with and without those inside it, and the device for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask, summed_by
from iotrace.analysis.device.modules import rows_around
from iotrace.analysis.intervals import outer_first
from iotrace.analysis.results import Operator
from iotrace.analysis.table import match
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

_NONE = -1
_ROUNDED_NS = 2  # by which ranges beside each other may overlap, as times are rounded


class OperatorTree(msgspec.Struct, frozen=True, dict=True):
    """The operators of a trace: which one lies in which, and which one launched what the device did.

    Columns have an entry for each operator; `rows` are those of the trace, in order of thread and start.
    """

    activity: Activity

    @property
    def events(self) -> Mask:
        """Which events of the trace the tree is of."""
        return self.activity.operators

    @cached_property
    def rows(self) -> Column:
        rows, events = np.flatnonzero(self.events), self.activity.trace.events
        rows = rows[outer_first(events.start_ns[rows], events.end_ns[rows])]
        return rows[np.argsort(events.thread[rows], kind="stable")]

    @cached_property
    def parent(self) -> Column:
        """The index of the operator around each, on its thread; -1 where there is none."""
        events = self.activity.trace.events
        found = np.full(len(self.rows), _NONE, dtype=np.int64)
        threads = events.thread[self.rows]
        bounds = np.flatnonzero(np.diff(threads)) + 1
        for own in np.split(np.arange(len(self.rows)), bounds):
            starts = events.start_ns[self.rows[own]]
            ends = np.maximum(events.end_ns[self.rows[own]] - _ROUNDED_NS, starts + 1)
            if len(own):
                parent = _parents(starts, ends)
                found[own] = np.where(parent >= 0, own[0] + parent, _NONE)
        return found

    @property
    def host_self(self) -> Column:
        """What each took of the host without those directly inside, in ns."""
        events = self.activity.trace.events
        starts, ends = events.start_ns[self.rows], events.end_ns[self.rows]
        inner = np.flatnonzero(self.parent >= 0)
        around = self.parent[inner]
        inside = np.maximum(np.minimum(ends[inner], ends[around]) - starts[inner], 0)
        found: Column = np.maximum(ends - starts - _summed(around, inside, len(self.rows)), 0)
        return found

    @cached_property
    def device_self(self) -> Column:
        """What the device did for each operator itself, in ns."""
        launched = np.flatnonzero(self.launcher >= 0)
        durations = self.activity.trace.events.duration_ns[launched]
        return _summed(self.launcher[launched], durations, len(self.rows))

    @cached_property
    def device_total(self) -> Column:
        """What the device did for each operator and those inside, in ns."""
        found: Column = self.device_self.copy()
        for level in reversed(self.levels[1:]):
            found += _summed(self.parent[level], found[level], len(self.rows))
        return found

    @cached_property
    def outermost(self) -> Mask:
        """Which operators lie in no other one of their name."""
        names, above = self.activity.trace.events.name[self.rows], self.parent.copy()
        found = np.ones(len(names), dtype=np.bool_)
        left = np.flatnonzero(above >= 0)
        while len(left):
            same = names[above[left]] == names[left]
            found[left[same]] = False
            left = left[~same]
            above[left] = self.parent[above[left]]
            left = left[above[left] >= 0]
        return found

    @cached_property
    def levels(self) -> list[Column]:
        """The operators by how many others lie around them, outermost first."""
        depth = np.zeros(len(self.rows), dtype=np.int64)
        while True:
            deeper = np.where(self.parent >= 0, depth[self.parent] + 1, 0)
            if (deeper == depth).all():
                return [np.flatnonzero(depth == level) for level in range(int(depth.max(initial=0)) + 1)]
            depth = deeper

    def names(self, index: Column) -> Column:
        """Look up the number of each operator's name; -1 where there is none."""
        return np.append(self.activity.trace.events.name[self.rows], _NONE)[index]

    @cached_property
    def launcher(self) -> Column:
        """Per event of the trace the index of the operator that launched it, the innermost; -1 where unknown.

        The launch tells it by the correlation; without one, the external id where that is another number.
        """
        activity, events = self.activity, self.activity.trace.events
        found = np.full(len(events), _NONE, dtype=np.int64)
        index = np.full(len(events) + 1, _NONE, dtype=np.int64)
        index[self.rows] = np.arange(len(self.rows))
        launched = np.flatnonzero(activity.device & (activity.launch >= 0))
        around = rows_around(activity, self.events, activity.launch[launched])
        found[launched] = index[around]
        ids = events.external_id
        unlaunched = np.flatnonzero(
            activity.device & (activity.launch < 0) & (ids >= 0) & (ids != events.correlation)
        )
        known = np.flatnonzero(ids[self.rows] >= 0)[::-1]  # of several the first: `match` finds the last
        found[unlaunched] = np.append(known, _NONE)[match(ids[unlaunched], ids[self.rows[known]])]
        return found


def _parents(starts: Column, ends: Column) -> Column:
    """Find the range around each of one thread's, in order of start; -1 where there is none."""
    depth = np.arange(len(starts)) - np.searchsorted(np.sort(ends), starts, side="right")
    parent = np.full(len(starts), _NONE, dtype=np.int64)
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        own = np.flatnonzero(depth == level)
        parent[own] = above[np.searchsorted(above, own) - 1]
        above = own
    # Of ranges that overlap without nesting, what lies in neither is beside both.
    return np.where((parent >= 0) & (ends[parent] <= starts), _NONE, parent)


class HostTree(OperatorTree, frozen=True, dict=True):
    """All that nests on the host: operators, calls of the runtime, functions where stacks were recorded."""

    @property
    def events(self) -> Mask:
        found: Mask = self.activity.operators | np.isin(self.activity.kinds, (Kind.RUNTIME, Kind.PYTHON))
        return found


class RangeTree(OperatorTree, frozen=True, dict=True):
    """The ranges that the program named (``record_function``), without steps, waits and collectives."""

    @property
    def events(self) -> Mask:
        activity = self.activity
        others = activity.steps | activity.data_waits | activity.collective_ranges | activity.modules
        found: Mask = (activity.kinds == Kind.ANNOTATION) & ~others
        return found


_TIMES = ("host_total_us", "host_self_us", "device_total_us", "device_self_us")


def operators_of(trees: Sequence[OperatorTree]) -> list[Operator]:
    """Sum up the operators by name, the costliest for the host first.

    A call within one of the same name is a part of that.
    """
    sums: dict[str, Any] = defaultdict(int)  # calls, then `_TIMES` in ns
    for tree in trees:
        trace, events, outermost = tree.activity.trace, tree.activity.trace.events, tree.outermost
        columns = (
            np.ones(len(tree.rows)),
            np.where(outermost, events.duration_ns[tree.rows], 0),
            tree.host_self,
            np.where(outermost, tree.device_total, 0),
            tree.device_self,
        )
        for name, own in summed_by(events.name[tree.rows], *columns):
            sums[trace.names[name]] += own
    found = [
        Operator(name=name, calls=int(one[0]), **dict(zip(_TIMES, (one[1:] / 1e3).tolist(), strict=True)))
        for name, one in sums.items()
    ]
    return sorted(found, key=lambda one: (-one.host_self_us, one.name))


def _summed(keys: Column, values: Column, count: int) -> Column:
    """Sum `values` by key; a float64 holds 104 days in ns exactly."""
    return np.bincount(keys, weights=values, minlength=count).astype(np.int64)
