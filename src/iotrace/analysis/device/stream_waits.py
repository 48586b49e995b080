"""What a stream waited for on another one: by the trace's synchronisation events, else inferred."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.results import StreamWait
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column, Details

Key = TypeVar("Key", bound=Hashable)
NONE = -1
EARLIEST = np.iinfo(np.int64).min
_WAIT_CALL = re.compile(r"(?:cuda|hip)StreamWaitEvent|cuStreamWaitEvent")
_AT_ONCE_NS = 20_000  # after what it waited for ended, a stream goes on within that
_LEAST_NS = 2_000  # of a wait that is told: shorter ones are the rounding of times


class Queues(msgspec.Struct, frozen=True, dict=True):
    """What the device did by stream. Columns have an entry for each event, ordered by stream and start."""

    activity: Activity

    @cached_property
    def rows(self) -> Column:
        """The events' rows in the trace."""
        events, rows = self.activity.trace.events, np.flatnonzero(self.activity.device)
        found: Column = rows[np.lexsort((events.start_ns[rows], events.stream[rows], events.device[rows]))]
        return found

    @cached_property
    def queue(self) -> Column:
        """A number for each device and stream."""
        events, rows = self.activity.trace.events, self.rows
        changes = (np.diff(events.stream[rows]) != 0) | (np.diff(events.device[rows]) != 0)
        return np.concatenate(([0], np.cumsum(changes))).astype(np.int64)[: len(rows)]

    @cached_property
    def start_ns(self) -> Column:
        """When each began; not before the one before it on its stream ended."""
        return np.maximum(self.activity.trace.events.start_ns[self.rows], self.previous_ns)

    @cached_property
    def end_ns(self) -> Column:
        """When each ended; not before those before it on its stream."""
        ends: Column = self.activity.trace.events.end_ns[self.rows]
        return np.concatenate([ends[:0], *map(np.maximum.accumulate, self._split(ends))])

    def by_stream(self) -> list[Column]:
        """The rows of each stream's events."""
        return self._split(self.rows)

    def _split(self, column: Column) -> list[Column]:
        return np.split(column, np.flatnonzero(~self.has_previous)[1:])

    @cached_property
    def has_previous(self) -> Mask:
        """Whether another one was before it on its stream."""
        same: Mask = np.diff(self.queue, prepend=-1) == 0
        return same

    @cached_property
    def previous_ns(self) -> Column:
        """When the one before each on its stream ended; the least number without one."""
        return np.where(self.has_previous, np.roll(self.end_ns, 1), EARLIEST)

    @cached_property
    def launched_ns(self) -> Column:
        """When each was launched; the least number where that is not known."""
        return self.activity.launched_ns(self.rows, EARLIEST)

    @cached_property
    def ready_ns(self) -> Column:
        """When nothing of its own stream, nor its launch, kept each any longer."""
        return np.maximum(self.previous_ns, self.launched_ns)

    @cached_property
    def waits(self) -> tuple[Column, Mask]:
        """Per event the one on another stream that it waited for, -1 where none is known; the measured ones.

        Only waits that kept it longer than its own stream and its launch did.
        """
        measured = (self._named != NONE) & self._kept(self._named)
        return np.where(measured, self._named, self._inferred()), measured

    @cached_property
    def told(self) -> Mask:
        """Whether a stream was told to wait for another one right before each was launched."""
        found: Mask = self._named != NONE
        found[self._next_launches] = True
        return found

    @cached_property
    def _named(self) -> Column:
        """Per event what ``Stream Wait Event`` says that it waits for; Kineto writes that where asked to."""
        trace, events = self.activity.trace, self.activity.trace.events
        found = np.full(len(self.rows), NONE, dtype=np.int64)
        rows = np.flatnonzero(trace.named(lambda name: name == "Stream Wait Event"))
        if not len(rows):
            return found
        details = Details(trace)
        call_ns = self._called_ns()
        for row in rows.tolist():
            stream, record = details.awaited(int(events.details[row]))
            recorded_ns, called_ns = call_ns.get(record), call_ns.get(int(events.correlation[row]))
            if stream is None or recorded_ns is None or called_ns is None:
                continue
            device = int(events.device[row])
            of_device = events.device[self.rows] == device
            later = of_device & (events.stream[self.rows] == int(events.stream[row]))
            later &= self.launched_ns >= called_ns
            earlier = of_device & (events.stream[self.rows] == stream) & (self.launched_ns < recorded_ns)
            if not later.any() or not earlier.any():
                continue
            consumer, producer = int(np.flatnonzero(later)[0]), int(np.flatnonzero(earlier)[-1])
            longest = found[consumer]
            if longest == NONE or self.end_ns[longest] < self.end_ns[producer]:
                found[consumer] = producer
        return found

    def _called_ns(self) -> dict[int | None, int]:
        """When each runtime call that launched nothing began, by its correlation."""
        events = self.activity.trace.events
        is_event = self.activity.trace.named(lambda name: "Event" in name)
        calls = np.flatnonzero((self.activity.kinds == Kind.RUNTIME) & (events.correlation >= 0) & is_event)
        return dict(zip(events.correlation[calls].tolist(), events.start_ns[calls].tolist(), strict=True))

    def _kept(self, producer: Column) -> Mask:
        """Whether the producers ended after all else that kept their consumers, and before these began."""
        ended = self.end_ns[np.maximum(producer, 0)] if len(self.rows) else producer
        kept: Mask = (ended > self.ready_ns + _LEAST_NS) & (ended <= self.start_ns + _LEAST_NS)
        return kept

    @cached_property
    def _next_launches(self) -> list[int]:
        """What was launched next, on its thread, after each call that told a stream to wait."""
        trace, events = self.activity.trace, self.activity.trace.events
        calls = np.flatnonzero((self.activity.kinds == Kind.RUNTIME) & trace.matching(_WAIT_CALL))
        call = self.activity.launch[self.rows]
        launched = np.flatnonzero(call >= 0)
        if not len(calls) or not len(launched):
            return []
        launched = launched[np.lexsort((self.launched_ns[launched], events.thread[call[launched]]))]
        threads = events.thread[call[launched]]
        found = []
        for row in calls.tolist():
            first, behind = np.searchsorted(threads, [events.thread[row], events.thread[row] + 1])
            at = first + np.searchsorted(self.launched_ns[launched[first:behind]], events.start_ns[row])
            if at < behind:
                found.append(int(launched[at]))
        return found

    def _inferred(self) -> Column:
        """Infer waits: a stream was told to wait, was ready, and went on as another one's event ended."""
        found = np.full(len(self.rows), NONE, dtype=np.int64)
        by_end = np.argsort(self.end_ns, kind="stable")
        ends = self.end_ns[by_end]
        for consumer in self._next_launches:
            start = int(self.start_ns[consumer])
            last = int(np.searchsorted(ends, start, side="right")) - 1
            while last >= 0 and ends[last] >= start - _AT_ONCE_NS:
                producer = int(by_end[last])
                if self.queue[producer] != self.queue[consumer]:
                    if ends[last] > self.ready_ns[consumer] + _LEAST_NS:
                        found[consumer] = producer
                    break
                last -= 1
        return found


class Spent(dict[Key, tuple[int, int]]):
    """Calls and ns by key."""

    def add(self, key: Key, calls: int, ns: int) -> None:
        """Add to the sums of a key."""
        before = self.get(key, (0, 0))
        self[key] = before[0] + calls, before[1] + ns


def stream_waits_of(windows: Sequence[Queues]) -> list[StreamWait]:
    """Sum up the waits by both streams and what waited for what, the longest first."""
    sums: Spent[tuple[int, int, int, str, str, bool]] = Spent()
    for queues in windows:
        producer, is_measured = queues.waits
        trace, events = queues.activity.trace, queues.activity.trace.events
        for at in np.flatnonzero(producer != NONE).tolist():
            row, other = int(queues.rows[at]), int(queues.rows[producer[at]])
            key = (
                int(events.device[row]),
                int(events.stream[row]),
                int(events.stream[other]),
                trace.names[events.name[row]],
                trace.names[events.name[other]],
                bool(is_measured[at]),
            )
            sums.add(key, 1, int(queues.end_ns[producer[at]] - queues.ready_ns[at]))
    found = [
        StreamWait(
            device=None if device < 0 else device,
            stream=stream,
            waits_for=other,
            calls=calls,
            waited_us=waited_ns / 1e3,
            kernel=kernel,
            kernel_before=before,
            measured=measured,
        )
        for (device, stream, other, kernel, before, measured), (calls, waited_ns) in sums.items()
    ]
    return sorted(found, key=lambda one: -one.waited_us)
