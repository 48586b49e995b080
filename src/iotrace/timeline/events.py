"""A timeline as batches of Chrome events, for the file of a session and for a merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from iotrace.sources.chrome.batch import EventBatch
from iotrace.sources.chrome.event import Event
from iotrace.timeline.model import Slice, Timeline

Number = int | str
# Of each process its number, and per thread its number and slices: what the events name them by.
Threads = list[tuple[Number, list[tuple[Number, list[Slice]]]]]
_Timed = tuple[Event, int, int]  # with start and duration in ns

_encode = msgspec.json.Encoder().encode
_AT_ONCE = 20_000


def batches_of(timeline: Timeline, threads: Threads, first_flow: int) -> Iterator[EventBatch]:
    """Yield the slices, counters and flows; flows are numbered from `first_flow`."""
    return batched(_events(timeline, threads, first_flow))


def batched(events: Iterable[_Timed]) -> Iterator[EventBatch]:
    """Yield batches of a bounded size."""
    rest = iter(events)
    while timed := list(islice(rest, _AT_ONCE)):
        found, starts, durations = zip(*timed, strict=True)
        yield EventBatch(list(found), np.array(starts, np.int64), np.array(durations, np.int64))


def _events(timeline: Timeline, threads: Threads, first_flow: int) -> Iterator[_Timed]:
    thread_of: dict[Slice, tuple[Number, Number]] = {}
    for process, (pid, tracks) in zip(timeline.processes, threads, strict=True):
        for tid, slices in tracks:
            for item in slices:
                thread_of[item] = (pid, tid)
                args = Raw(_encode(item.args)) if item.args else UNSET
                event = Event(ph="X", pid=pid, tid=tid, name=item.name, cat=item.category, dur=0, args=args)
                yield event, item.start_ns, item.end_ns - item.start_ns
        for counter in process.counters:
            for time_ns, value in counter.points:
                args = Raw(_encode({counter.unit: value}))
                yield Event(ph="C", pid=pid, name=counter.name, args=args), time_ns, 0
    for number, flow in enumerate(timeline.flows, start=first_flow):
        last = len(flow.stops) - 1
        for position, (item, time_ns) in enumerate(flow.stops):
            pid, tid = thread_of[item]
            phase = "s" if position == 0 else "f" if position == last else "t"
            event = Event(ph=phase, pid=pid, tid=tid, name=flow.name, cat=flow.category, id=number, bp="e")
            yield event, time_ns, 0
