"""Operators by name: what each cost the host, with and without those inside it, and the device for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.device.modules import Enclosing
from iotrace.analysis.intervals import outer_first
from iotrace.analysis.results import Operator
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
        around = Enclosing(activity, activity.operators).rows(activity.launch[launched])
        found[launched] = index[around]
        ids = events.external_id
        unlaunched = np.flatnonzero(
            activity.device & (activity.launch < 0) & (ids >= 0) & (ids != events.correlation)
        )
        known = np.flatnonzero(ids[self.rows] >= 0)
        if len(unlaunched) and len(known):
            known = known[np.argsort(ids[self.rows[known]], kind="stable")]
            at = np.searchsorted(ids[self.rows[known]], ids[unlaunched])
            hit = known[np.minimum(at, len(known) - 1)]
            same = ids[self.rows[hit]] == ids[unlaunched]
            found[unlaunched[same]] = hit[same]
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


class _Sums(msgspec.Struct):
    calls: int = 0
    host_total: int = 0
    host_self: int = 0
    device_total: int = 0
    device_self: int = 0


def operators_of(trees: Sequence[OperatorTree]) -> list[Operator]:
    """Sum up the operators by name, the costliest for the host first.

    A call within one of the same name is a part of that.
    """
    sums: dict[str, _Sums] = {}
    for tree in trees:
        _add(sums, tree)
    return sorted(
        (
            Operator(
                name=name,
                calls=one.calls,
                host_total_us=one.host_total / 1e3,
                host_self_us=one.host_self / 1e3,
                device_total_us=one.device_total / 1e3,
                device_self_us=one.device_self / 1e3,
            )
            for name, one in sums.items()
        ),
        key=lambda one: (-one.host_self_us, one.name),
    )


def _add(sums: dict[str, _Sums], tree: OperatorTree) -> None:
    trace, events = tree.activity.trace, tree.activity.trace.events
    count = len(tree.rows)
    if not count:
        return
    lengths = events.duration_ns[tree.rows]
    names, numbers = np.unique(events.name[tree.rows], return_inverse=True)
    outermost = tree.outermost
    columns = {
        "calls": np.ones(count, dtype=np.int64),
        "host_total": np.where(outermost, lengths, 0),
        "host_self": tree.host_self,
        "device_total": np.where(outermost, tree.device_total, 0),
        "device_self": tree.device_self,
    }
    totals = {name: _summed(numbers, column, len(names)).tolist() for name, column in columns.items()}
    for at, name in enumerate(names.tolist()):
        one = sums.setdefault(trace.names[name], _Sums())
        for field, values in totals.items():
            setattr(one, field, getattr(one, field) + values[at])


def _summed(keys: Column, values: Column, count: int) -> Column:
    """Sum `values` by key; a float64 holds 104 days in ns exactly."""
    return np.bincount(keys, weights=values, minlength=count).astype(np.int64)
