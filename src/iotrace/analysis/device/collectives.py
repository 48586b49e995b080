"""The same collective on every rank: matched by group and sequence, else by step, order and size."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from iotrace.analysis.device.accelerator import DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.trace import Column

# Backends that communicate on the host; the ranges of others (nccl:…) are mere launches.
_HOST_BACKEND = re.compile(r"(?:gloo|mpi|ucc):")
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})
_NO_STEP = -1
_Row = tuple[int, int]  # of a trace, and the step that it lies in


class LateBatch(msgspec.Struct, frozen=True):
    """The batch of a data wait: the worker that made it, its costliest cause and file; None: unknown."""

    batch: int
    worker: int | None
    pid: int | None
    cause: str | None
    file: str | None


class RankTrace(msgspec.Struct, frozen=True, dict=True):
    """A rank's trace with its raw data waits; `batch_of` tells the batch of a wait by its row.

    Its times are the reference's to within `clock_bound_ns`; None where its clock was compared with none.
    """

    rank: int
    activity: Activity
    waits: DataWaits
    clock_bound_ns: int | None = None
    batch_of: Callable[[int], LateBatch | None] | None = None

    @cached_property
    def has_device(self) -> bool:
        """Whether the trace shows what a device did."""
        return bool(self.activity.device.any())

    @cached_property
    def steps(self) -> tuple[Column, Column, list[int]]:
        """Starts, ends and numbers of its steps; without profiler steps one step numbered -1, all of it."""
        (starts, ends), numbers = self.activity.step_spans()
        if len(starts):
            return starts, ends, numbers
        first, last = self.activity.trace.span_ns() or (0, 0)
        return np.array([first]), np.array([last]), [_NO_STEP]

    def collective(self, row: int) -> Collective | None:
        """Look up what the trace says of the collective in one row; None where it says nothing."""
        number = int(self.activity.trace.events.collective[row])
        return self.activity.trace.collectives[number] if number >= 0 else None


class Matched(msgspec.Struct, frozen=True):
    """One collective on the ranks that took part: each one's start and duration in its own clock."""

    name: str
    elements: int | None
    step: int | None
    starts_ns: dict[int, int]
    durations_ns: dict[int, int]

    @property
    def real_ns(self) -> int:
        """What it took once all ranks had arrived: the shortest of the durations."""
        return min(self.durations_ns.values())

    @property
    def last(self) -> int | None:
        """The rank that arrived last: it waited least. None where several waited as little."""
        last = [rank for rank, lasted_ns in self.durations_ns.items() if lasted_ns == self.real_ns]
        return last[0] if len(last) == 1 else None

    def wait_ns(self, rank: int) -> int:
        return self.durations_ns[rank] - self.real_ns


def match(ranks: Sequence[RankTrace]) -> tuple[list[Matched], int]:
    """Match the collectives that the trace of every rank taking part holds, in order; count the others."""
    found: dict[Hashable, dict[int, list[_Row]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for row, step, key in _keys(rank):
            found[key][rank.rank].append((row, step))
    by_number = {rank.rank: rank for rank in ranks}
    matched = []
    unmatched = 0
    for rows in found.values():
        first = next(iter(rows))
        collective = by_number[first].collective(rows[first][0][0])
        taking_part = set(by_number)
        if collective and collective.ranks:
            taking_part &= set(collective.ranks)
        counts = {len(own) for own in rows.values()}
        if set(rows) != taking_part or len(counts) != 1 or len(rows) < 2:
            unmatched += max(counts)
            continue
        for number in range(counts.pop()):
            matched.append(_matched(by_number, {rank: own[number] for rank, own in rows.items()}))
    order = min(by_number)
    return sorted(matched, key=lambda one: one.starts_ns.get(order, min(one.starts_ns.values()))), unmatched


def _keys(rank: RankTrace) -> Iterator[tuple[int, int, Hashable]]:
    """Yield the rank's collectives in order of start: row, step, and what it shares with the other ranks'."""
    activity, events = rank.activity, rank.activity.trace.events
    on_host = activity.collective_ranges & activity.trace.matching(_HOST_BACKEND)
    rows = np.flatnonzero(activity.collective_kernels | on_host)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    call = activity.launch[rows]
    begun = np.where(call >= 0, events.start_ns[np.maximum(call, 0)], events.start_ns[rows])
    starts, ends, numbers = rank.steps
    index = np.searchsorted(starts, begun, side="right") - 1
    steps = np.where((index >= 0) & (begun < ends[index]), np.array(numbers)[index], _NO_STEP)
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        one = rank.collective(row)
        if one is None:
            yield row, step, (step, activity.trace.names[events.name[row]])
        elif one.name in _POINT_TO_POINT:
            continue
        elif one.sequence is not None:
            yield row, step, (one.group, one.ranks, one.sequence, one.name)
        else:
            yield row, step, (step, one.group, one.ranks, one.name, one.dtype, one.elements)


def _matched(ranks: dict[int, RankTrace], rows: dict[int, _Row]) -> Matched:
    first = min(rows)
    row, step = rows[first]
    collective = ranks[first].collective(row)
    events = {rank: ranks[rank].activity.trace.events for rank in rows}
    names = ranks[first].activity.trace.names
    return Matched(
        name=collective.name if collective else names[events[first].name[row]],
        elements=collective.elements if collective else None,
        step=None if step == _NO_STEP else step,
        starts_ns={rank: int(events[rank].start_ns[own]) for rank, (own, _) in rows.items()},
        durations_ns={rank: int(events[rank].duration_ns[own]) for rank, (own, _) in rows.items()},
    )
