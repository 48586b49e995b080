"""The same collective on every rank: matched by group and sequence, else by step, order and size."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from iotrace.analysis.device.accelerator import DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.trace import Column

# Backends that communicate on the host; the ranges of others (nccl:…) are mere launches.
_HOST_BACKEND = re.compile(r"(?:gloo|mpi|ucc):")
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})
_NO_STEP = -1


@dataclass(frozen=True)
class RankTrace:
    """A rank's trace with its raw data waits."""

    rank: int
    activity: Activity
    waits: DataWaits

    def steps(self) -> tuple[Column, Column, list[int]]:
        """Starts, ends and numbers of its steps; without profiler steps one step numbered -1, all of it."""
        (starts, ends), numbers = self.activity.step_spans()
        if len(starts):
            return starts, ends, numbers
        span = self.activity.trace.span_ns()
        first, last = span if span is not None else (0, 0)
        return np.array([first]), np.array([last]), [_NO_STEP]


@dataclass(frozen=True)
class Matched:
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
    def last(self) -> int:
        """The rank that arrived last: it waited least."""
        return min(self.durations_ns, key=lambda rank: self.durations_ns[rank])

    def wait_ns(self, rank: int) -> int:
        return self.durations_ns[rank] - self.real_ns


def match(ranks: Sequence[RankTrace]) -> tuple[list[Matched], int]:
    """The collectives that every taking part rank's trace holds, in order; how many were not matched."""
    found: dict[Hashable, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for row, key in _keys(rank):
            found[key][rank.rank].append(row)
    by_number = {rank.rank: rank for rank in ranks}
    matched = []
    unmatched = 0
    for rows in found.values():
        first = next(iter(rows))
        told = _told(by_number[first].activity, rows[first][0])
        taking_part = set(told.ranks) & set(by_number) if told and told.ranks else set(by_number)
        counts = {len(own) for own in rows.values()}
        if set(rows) != taking_part or len(counts) != 1 or len(rows) < 2:
            unmatched += max(counts)
            continue
        for place in range(counts.pop()):
            matched.append(_matched(by_number, {rank: own[place] for rank, own in rows.items()}))
    order = min(by_number)
    return sorted(matched, key=lambda one: one.starts_ns.get(order, min(one.starts_ns.values()))), unmatched


def _keys(rank: RankTrace) -> list[tuple[int, Hashable]]:
    """The rank's collectives in order of start, each with what it has in common with the other ranks'."""
    activity, events = rank.activity, rank.activity.trace.events
    on_host = activity.collective_ranges & activity.trace.named(
        lambda name: _HOST_BACKEND.match(name) is not None
    )
    rows = np.flatnonzero(activity.collective_kernels | on_host)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    call = activity.launch[rows]
    begun = np.where(call >= 0, events.start_ns[np.maximum(call, 0)], events.start_ns[rows])
    starts, ends, numbers = rank.steps()
    place = np.searchsorted(starts, begun, side="right") - 1
    keys: list[tuple[int, Hashable]] = []
    for row, at, time in zip(rows.tolist(), place.tolist(), begun.tolist(), strict=True):
        told = _told(activity, row)
        name = activity.trace.names[events.name[row]]
        if told is None:
            key: Hashable = (_step(numbers, ends, at, time), name)
        elif told.name in _POINT_TO_POINT:
            continue
        elif told.sequence is not None:
            key = (told.group, told.ranks, told.sequence, told.name)
        else:
            key = (
                _step(numbers, ends, at, time),
                told.group,
                told.ranks,
                told.name,
                told.dtype,
                told.elements,
            )
        keys.append((row, key))
    return keys


def _step(numbers: list[int], ends: Column, place: int, time: int) -> int:
    return numbers[place] if place >= 0 and time < ends[place] else _NO_STEP


def _told(activity: Activity, row: int) -> Collective | None:
    number = int(activity.trace.events.collective[row])
    return activity.trace.collectives[number] if number >= 0 else None


def _matched(ranks: dict[int, RankTrace], rows: dict[int, int]) -> Matched:
    first = min(rows)
    activity = ranks[first].activity
    told = _told(activity, rows[first])
    starts, ends, numbers = ranks[first].steps()
    events = activity.trace.events
    row = rows[first]
    call = int(activity.launch[row])
    time = int(events.start_ns[call if call >= 0 else row])
    step = _step(numbers, ends, int(np.searchsorted(starts, time, side="right")) - 1, time)
    return Matched(
        name=told.name if told else activity.trace.names[events.name[row]],
        elements=told.elements if told else None,
        step=None if step == _NO_STEP else step,
        starts_ns={rank: int(ranks[rank].activity.trace.events.start_ns[own]) for rank, own in rows.items()},
        durations_ns={
            rank: int(ranks[rank].activity.trace.events.duration_ns[own]) for rank, own in rows.items()
        },
    )
