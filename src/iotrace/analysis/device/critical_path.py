"""The critical path of a step: from its end back along whatever was awaited last, on host and device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.device.stream_waits import EARLIEST, NONE, Queues, Spent
from iotrace.analysis.intervals import Coverage, Intervals, innermost, pieces
from iotrace.analysis.results import CriticalPart, CriticalPath
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

KINDS = (
    *("data_wait", "operator", "runtime", "host", "kernel", "collective", "memory"),
    *("launch_delay", "kernel_gap", "stream_wait", "unknown"),
)
_OPERATOR, _RUNTIME, _COLLECTIVE, _HOST, _DATA_WAIT = (
    KINDS.index(kind) for kind in ("operator", "runtime", "collective", "host", "data_wait")
)
MOST_STEPS = 10  # that are looked at, spread over the trace
_MOST_PARTS = 30
_FREES = re.compile(r"(?:cuda|hip)Free$")  # returns when the device has done all
_CLOCKS_NS = 20_000  # by which a device's end may lie behind the return of the call that waited for it
_ROUNDING_NS = 1_000  # by which a call may end behind what it lies in: times are rounded to a us at most
_PREVIOUS, _LAUNCH, _WAIT, _UNKNOWN = range(4)


class _Walk(msgspec.Struct, frozen=True, dict=True):
    """A trace as the path needs it: what each event of the device awaited last, which calls waited for it."""

    queues: Queues

    @property
    def activity(self) -> Activity:
        return self.queues.activity

    @cached_property
    def binding(self) -> Column:
        """What each event of the device awaited last."""
        queues = self.queues
        known = queues.launched_ns != EARLIEST
        found = np.where(known & (queues.launched_ns > queues.previous_ns), _LAUNCH, _PREVIOUS)
        found[~known & ~queues.has_previous] = _UNKNOWN
        found[queues.waits[0] != NONE] = _WAIT
        return np.asarray(found, dtype=np.int64)

    @cached_property
    def run_start(self) -> Column:
        """Per event the first one of those that each awaited the one before it on their stream."""
        own = np.where(self.binding != _PREVIOUS, np.arange(len(self.binding)), 0)
        return np.maximum.accumulate(own) if len(own) else own

    @cached_property
    def threads(self) -> list[int]:
        """The threads of the loop, the one of its steps first: those that launch, and those of backward."""
        activity, events = self.activity, self.activity.trace.events
        first = events.thread[activity.steps]
        calls = activity.launch[activity.device & (activity.launch >= 0)]
        others = (events.thread[calls], events.thread[activity.operators & (events.forward_thread > 0)])
        if not len(first):
            first = events.thread[activity.operators][:1]
        return list(dict.fromkeys(np.concatenate([first, *map(np.unique, others)]).tolist()))

    @cached_property
    def blocked(self) -> tuple[Column, Column, Column]:
        """Calls that waited for the device, by their end: when they returned, until when, for which event."""
        activity, events, queues = self.activity, self.activity.trace.events, self.queues
        frees = (activity.kinds == Kind.RUNTIME) & activity.trace.matching(_FREES)
        calls = np.flatnonzero(activity.synchronising | activity.blocking_copies | frees)
        calls = calls[np.isin(events.thread[calls], self.threads)]
        calls = calls[np.argsort(events.end_ns[calls], kind="stable")]
        by_end = np.argsort(queues.end_ns, kind="stable")
        ends = queues.end_ns[by_end]
        last = np.searchsorted(ends, events.end_ns[calls] + _CLOCKS_NS, side="right") - 1
        streams = self._streams()
        found = []
        for call, at in zip(calls.tolist(), last.tolist(), strict=True):
            begun, returned = int(events.start_ns[call]), int(events.end_ns[call])
            stream = streams.get(int(events.correlation[call]))
            while at >= 0 and ends[at] > begun:
                row = int(by_end[at])
                of_stream = stream is None or int(events.stream[queues.rows[row]]) == stream
                if of_stream and queues.launched_ns[row] < returned:
                    found.append((returned, min(int(ends[at]), returned), row))
                    break
                at -= 1
        table = np.array(found, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    def _streams(self) -> dict[int, int]:
        """The streams that calls waited for, by correlation, as Kineto's synchronisation events tell."""
        trace, events = self.activity.trace, self.activity.trace.events
        rows = np.flatnonzero(trace.named(lambda name: name == "Stream Sync") & (events.stream >= 0))
        return dict(zip(events.correlation[rows].tolist(), events.stream[rows].tolist(), strict=True))

    def path(self, begin: int, end: int) -> Iterator[tuple[str, int, int, int]]:
        """Yield the parts of the path between two times, backwards: kind, start, end, index of an event.

        The index is that of an event of the device, or -1. The parts are next to each other, and fill it.
        """
        time = end
        for kind, since, index in self._back_from(end):
            start = max(min(since, time), begin)
            if start < time:
                yield kind, start, time, index
            time = start
            if time <= begin:
                return

    def _back_from(self, time: int) -> Iterator[tuple[str, int, int]]:
        """Yield what lies before a time, backwards: kind, since when, index of an event.

        What begins no earlier than the part behind it has no time of its own.
        """
        queues = self.queues
        returned, until, rows = self.blocked
        call = len(returned)
        while True:
            call = min(call, int(np.searchsorted(returned, time + _ROUNDING_NS, side="right"))) - 1
            if call < 0:
                yield "host", EARLIEST, NONE
                return
            time, at, kind = min(int(until[call]), time), int(rows[call]), _PREVIOUS
            yield "host", time, NONE
            while kind != _LAUNCH:
                first = int(self.run_start[at])
                for each in range(at, first - 1, -1):
                    yield "device", int(queues.start_ns[each]), each
                    if each > first:
                        yield "kernel_gap", int(queues.end_ns[each - 1]), each
                time, kind = min(time, int(queues.start_ns[first])), int(self.binding[first])
                if kind == _WAIT:
                    at = int(queues.waits[0][first])
                    since = int(queues.end_ns[at])
                    yield "stream_wait", since, first
                elif kind == _LAUNCH:
                    since = int(queues.launched_ns[first])
                    yield "launch_delay", since, first
                else:
                    yield "unknown", EARLIEST, first
                    return
                time = min(time, since)


def critical_path_of(windows: Sequence[Queues]) -> CriticalPath | None:
    """Sum up the critical paths of steps, spread over the traces; None where nothing was launched."""
    sums: Spent[tuple[str, str]] = Spent()
    steps = length = of_steps = 0
    waits = measured = 0
    for queues in windows:
        walk, trace = _Walk(queues), queues.activity.trace
        spans, of_trace = _steps_of(walk)
        of_steps += of_trace
        for begin, end in spans:
            steps += 1
            length += end - begin
            on_host, on_device = _parts_of(walk, begin, end)
            for start, stop, kind, row in on_device:
                sums.add((kind, trace.names[trace.events.name[row]]), 1, stop - start)
            _add_host(sums, walk, on_host)
        producer, is_measured = queues.waits
        waits += int((producer != NONE).sum())
        measured += int(is_measured.sum())
    if not steps or not length:
        return None
    by_kind = dict.fromkeys(KINDS, 0)
    for (kind, _), (_, ns) in sums.items():
        by_kind[kind] += ns
    ranked = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return CriticalPath(
        steps=steps,
        of_steps=of_steps,
        span_us=length / 1e3,
        by_kind_us={kind: ns / 1e3 for kind, ns in by_kind.items()},
        parts=[
            CriticalPart(kind=kind, name=name, calls=calls, us=ns / 1e3, pct=100 * ns / length)
            for (kind, name), (calls, ns) in ranked[:_MOST_PARTS]
            if ns
        ],
        stream_waits_measured=measured,
        stream_waits_inferred=waits - measured,
    )


def _steps_of(walk: _Walk) -> tuple[list[tuple[int, int]], int]:
    """Choose the steps that are looked at, spread over the trace, and count all of them."""
    (starts, ends), _ = walk.activity.step_spans()
    if not len(starts):
        starts, ends = _whole(walk.activity)
    if not walk.threads or not len(starts):
        return [], 0
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(MOST_STEPS, len(starts))).astype(np.int64))
    return list(zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)), len(starts)


Part = tuple[int, int, str, int]  # start, end, kind, row of an event or -1


def stretches_of(queues: Queues) -> list[tuple[int, int, str, str]]:
    """List the stretches of the steps' critical paths in order: start and end in ns, kind, name."""
    walk, trace = _Walk(queues), queues.activity.trace
    found: list[tuple[int, int, str, str]] = []
    for begin, end in _steps_of(walk)[0]:
        host, parts = _parts_of(walk, begin, end)
        for start, stop, kind, row in sorted([*parts, *_on_host(walk, host)]):
            name = trace.names[trace.events.name[row]] if row != NONE else ""
            if found and found[-1][1:] == (start, kind, name):
                start = found.pop()[0]
            found.append((start, stop, kind, name))
    return found


def _whole(activity: Activity) -> Intervals:
    """Take a trace without steps as one: it ends on the host; without operators as the last call returns."""
    host = activity.operators | activity.data_waits
    if not activity.operators.any():
        host = activity.device | (activity.kinds == Kind.RUNTIME)
    starts, ends = activity.intervals(host)
    return (starts.min(keepdims=True), ends.max(keepdims=True)) if len(starts) else (starts, ends)


def _parts_of(walk: _Walk, begin: int, end: int) -> tuple[Column, list[Part]]:
    """Divide one step's path: spans on the host, in the shape (spans, 2), and the parts of the device."""
    activity, queues = walk.activity, walk.queues
    kernels = activity.kinds == Kind.KERNEL
    host: list[tuple[int, int]] = []
    found: list[Part] = []
    for kind, start, stop, at in walk.path(begin, end):
        if kind == "host":
            host.append((start, stop))
            continue
        row = int(queues.rows[at])
        if kind == "device":
            kind = (
                "collective" if activity.collective_kernels[row] else "kernel" if kernels[row] else "memory"
            )
        found.append((start, stop, kind, row))
    host.reverse()
    return np.array([pair for pair in host if pair[0] < pair[1]], np.int64).reshape(-1, 2), found


def _pieces(walk: _Walk, spans: Column) -> tuple[Intervals, Column, Mask, int]:
    """Divide the host's part: per piece the innermost call or operator of the loop's threads, or -1.

    Also which pieces lie in data waits, and in how many of these.
    """
    activity, events = walk.activity, walk.activity.trace.events
    own = spans[:, 0], spans[:, 1]
    waits = Coverage(*activity.intervals(activity.data_waits))
    is_call = activity.operators | (activity.kinds == Kind.RUNTIME) | activity.collective_ranges
    rows = np.flatnonzero(is_call & (events.end_ns > own[0][0]) & (events.start_ns < own[1][-1]))
    rows = rows[np.isin(events.thread[rows], walk.threads)]
    bounds = (events.start_ns[rows], events.end_ns[rows], waits.starts, waits.ends, *own)
    times = np.unique(np.concatenate(bounds))
    starts, ends, _, _ = pieces(times[:-1], times[1:], *own)
    middle = starts + (ends - starts) // 2
    inside = np.full(len(middle), NONE, dtype=np.int64)
    for thread in walk.threads:
        of_thread = rows[events.thread[rows] == thread]
        if len(of_thread):
            found = innermost(events.start_ns[of_thread], events.end_ns[of_thread], middle)
            inside = np.where((inside == NONE) & (found >= 0), of_thread[np.maximum(found, 0)], inside)
    waited = waits.within(starts, ends) > 0
    calls = len(np.unique(np.searchsorted(waits.starts, middle[waited], side="right")))
    return (starts, ends), inside, waited, calls


def _kinds_on_host(activity: Activity, rows: Column) -> Column:
    kinds = np.where(activity.collective_ranges[rows], _COLLECTIVE, _OPERATOR)
    kinds[activity.kinds[rows] == Kind.RUNTIME] = _RUNTIME
    return kinds


def _on_host(walk: _Walk, spans: Column) -> list[Part]:
    """List the parts of the host: data waits, else calls and operators, else the host itself."""
    if not len(spans):
        return []
    (starts, ends), inside, waited, _ = _pieces(walk, spans)
    kinds = np.where(inside == NONE, _HOST, _kinds_on_host(walk.activity, np.maximum(inside, 0)))
    kinds[waited], inside[waited] = _DATA_WAIT, NONE
    named = (KINDS[kind] for kind in kinds.tolist())
    return list(zip(starts.tolist(), ends.tolist(), named, inside.tolist(), strict=True))


def _add_host(sums: Spent[tuple[str, str]], walk: _Walk, spans: Column) -> None:
    """Add the host's part: data waits, else the innermost call or operator of the loop's threads."""
    trace, events = walk.activity.trace, walk.activity.trace.events
    if not len(spans):
        return
    (starts, ends), inside, waited, calls = _pieces(walk, spans)
    lasted = ends - starts
    sums.add(("data_wait", "data wait"), calls, int(lasted[waited].sum()))
    outside = ~waited & (inside == NONE)
    sums.add(("host", "outside of operators"), int(outside.sum()), int(lasted[outside].sum()))
    at = np.flatnonzero(~waited & (inside != NONE))
    rows, number = np.unique(inside[at], return_inverse=True)
    kinds = _kinds_on_host(walk.activity, rows)
    keys, group, counts = np.unique(
        events.name[rows].astype(np.int64) * len(KINDS) + kinds, return_inverse=True, return_counts=True
    )
    spent = np.bincount(group[number], weights=lasted[at], minlength=len(keys))
    for key, count, ns in zip(keys.tolist(), counts.tolist(), spent.tolist(), strict=True):
        sums.add((KINDS[key % len(KINDS)], trace.names[key // len(KINDS)]), count, int(ns))
