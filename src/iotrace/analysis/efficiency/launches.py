"""Calls of the runtime: what each costs the host; of launches how long kernels wait in the queue, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import rows_around
from iotrace.analysis.results import Launches, RuntimeCall
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

_MOST_OF_IT = 0.5  # of a call's time: what its operator has to be around to be named


def launches_of(windows: Sequence[Window]) -> list[Launches]:
    """Sum up what was launched by the name of its call, the most launches first."""
    parts: dict[str, list[Column]] = {}
    for window in windows:
        activity, trace = window.activity, window.activity.trace
        events = trace.events
        rows = np.flatnonzero(activity.device & (activity.launch >= 0))
        rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
        calls = activity.launch[rows]
        for name in np.unique(events.name[calls]).tolist():
            own = events.name[calls] == name
            # A graph's launch starts many kernels: the first tells how long it waited.
            called, first = np.unique(calls[own], return_index=True)
            started = rows[own][first]
            columns = (
                events.duration_ns[called],
                events.start_ns[started] - events.start_ns[called],
                events.duration_ns[started],
            )
            sums = parts.setdefault(trace.names[name], [np.empty(0, dtype=np.int64)] * 3)
            sums[:] = [np.concatenate(pair) for pair in zip(sums, columns, strict=True)]
    found = [_sum(name, *columns) for name, columns in parts.items()]
    return sorted(found, key=lambda one: (-one.calls, one.name))


def _sum(name: str, call_ns: Column, delay_ns: Column, device_ns: Column) -> Launches:
    return Launches(
        name=name,
        calls=len(call_ns),
        host_us=float(call_ns.sum()) / 1e3,
        host_median_us=float(np.median(call_ns)) / 1e3,
        delay_median_us=float(np.median(delay_ns)) / 1e3,
        delay_p95_us=float(np.percentile(delay_ns, 95)) / 1e3,
        device_median_us=float(np.median(device_ns)) / 1e3,
        shorter_than_call=int((device_ns < call_ns).sum()),
    )


def queue_of(windows: Sequence[Window]) -> tuple[float | None, int | None]:
    """Compute the launch queue's mean and longest length: launched, not started; None without launches.

    The mean is over the time of the device's activity.
    """
    waited_ns = span_ns = 0
    longest: int | None = None
    for window in windows:
        events = window.activity.trace.events
        rows = np.flatnonzero(window.activity.device & (window.activity.launch >= 0))
        if not len(rows):
            continue
        launched, started = events.start_ns[window.activity.launch[rows]], events.start_ns[rows]
        waited_ns += int(np.maximum(started - launched, 0).sum())
        span_ns += int(events.end_ns[rows].max() - min(launched.min(), started.min()))
        times = np.concatenate((started, launched))  # at one time a start comes before a launch
        order = np.argsort(times, kind="stable")
        changes = np.repeat([-1, 1], len(rows))[order]
        longest = max(longest or 0, int(np.cumsum(changes).max()))
    return (waited_ns / span_ns if span_ns else None), longest


def runtime_calls_of(windows: Sequence[Activity]) -> list[RuntimeCall]:
    """Sum up the calls by name, the costliest first."""
    lasted: dict[str, list[Column]] = {}
    by: dict[str, dict[str, float]] = {}
    waits: set[str] = set()
    for activity in windows:
        trace, events = activity.trace, activity.trace.events
        rows = np.flatnonzero(activity.kinds == Kind.RUNTIME)
        if not len(rows):
            continue
        around = rows_around(activity, activity.operators, rows)
        operator = np.where(around >= 0, events.name[np.maximum(around, 0)], -1)
        blocking = (activity.synchronising | activity.blocking_copies)[rows]
        order = np.argsort(events.name[rows], kind="stable")
        names = events.name[rows[order]]
        for own in np.split(order, np.flatnonzero(np.diff(names)) + 1):
            name, durations = trace.names[int(events.name[rows[own[0]]])], events.duration_ns[rows[own]]
            lasted.setdefault(name, []).append(durations)
            sums, known = by.setdefault(name, {}), operator[own] >= 0
            spent = (
                np.bincount(operator[own[known]], weights=durations[known]) if known.any() else np.empty(0)
            )
            for number in np.flatnonzero(spent).tolist():
                sums[trace.names[number]] = sums.get(trace.names[number], 0.0) + float(spent[number])
            if blocking[own].any():
                waits.add(name)
    found = [
        _runtime_call(name, np.concatenate(parts), by[name], name in waits) for name, parts in lasted.items()
    ]
    return sorted(found, key=lambda one: (-one.total_us, one.name))


def _runtime_call(name: str, lasted: Column, by: dict[str, float], waits: bool) -> RuntimeCall:
    total = int(lasted.sum())
    most = max(by, key=lambda each: by[each], default=None)
    return RuntimeCall(
        name=name,
        calls=len(lasted),
        total_us=total / 1e3,
        median_us=float(np.median(lasted)) / 1e3,
        max_us=int(lasted.max()) / 1e3,
        waits=waits,
        called_by=most if most is not None and by[most] > _MOST_OF_IT * total else None,
    )
