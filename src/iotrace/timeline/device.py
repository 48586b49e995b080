"""What is derived of a device for its timeline: idle times by whose fault, modules, the launch queue.

An idle time of the report is a slice of the same start and length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iotrace.analysis.device.accelerator import DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.gaps import CLASSES, MOST_GAPS, classify, gaps_of, names_of
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import PHASES, Origins, nested_ranges
from iotrace.analysis.intervals import Coverage
from iotrace.sources.kineto.trace import Column
from iotrace.timeline.model import Counter, Slice, Track, known

IDLE, MODULES, QUEUE = "idle", "modules", "launch queue"
_SHORT = CLASSES.index("kernel_wait")
_OTHER = PHASES.index("other")


class Derived(NamedTuple):
    """What one device gets: tracks that stand above its streams, and counters."""

    tracks: list[Track]
    counters: list[Counter]


def derived_of(
    activity: Activity, waits: DataWaits, kernel_gap_us: float, owner: Column, prefix: str = ""
) -> dict[int, Derived]:
    """Derive the tracks of each device; `owner` tells per event of the trace whose it is.

    Idle times between kernels that the host launched in time are left out (class ``kernel_wait``), except
    where they are among the longest.
    """
    window = Window.of(activity)
    found: dict[int, Derived] = {}
    for number, idle in _idle(window, waits, round(kernel_gap_us * 1000), owner).items():
        found.setdefault(number, Derived([], [])).tracks.append(Track(f"{prefix}{IDLE}", idle))
    for number in np.unique(owner[activity.device]).tolist():
        of_device = activity.device & (owner == number)
        ranges = _modules(activity, window.origins, np.flatnonzero(of_device & activity.compute_kernels))
        points = _queue(activity, np.flatnonzero(of_device & (activity.launch >= 0)))
        own = found.setdefault(number, Derived([], []))
        own.tracks.extend([Track(MODULES, ranges)] if ranges else [])
        own.counters.extend([Counter(f"{prefix}{QUEUE}", points, "length")] if points else [])
    return found


def _idle(window: Window, waits: DataWaits, kernel_gap_ns: int, owner: Column) -> dict[int, list[Slice]]:
    """Make a slice of each idle time, called by its class and what ended it, on the device that went on."""
    activity = window.activity
    gaps = gaps_of(activity, np.flatnonzero(activity.device))
    classes = classify(activity, gaps, Coverage(waits.starts_ns, waits.ends_ns), kernel_gap_ns)
    longest = np.argsort(gaps.start_ns - gaps.end_ns, kind="stable")[:MOST_GAPS]
    shown = classes.argmax(axis=1) != _SHORT
    shown[longest] = True
    wanted = np.flatnonzero(shown)
    found: dict[int, list[Slice]] = {}
    numbers = owner[gaps.ended_by[wanted]].tolist()
    for number, at, gap in zip(
        numbers, wanted.tolist(), names_of(window, gaps, classes, wanted), strict=True
    ):
        name = " · ".join((IDLE, gap.kind.replace("_", " "), gap.op or gap.after))
        about = {"module": gap.module, "launched by": gap.op, "before": gap.before, "after": gap.after}
        item = Slice(int(gaps.start_ns[at]), int(gaps.end_ns[at]), name, IDLE, known(**about))
        found.setdefault(number, []).append(item)
    return found


def _modules(activity: Activity, origins: Origins, rows: Column) -> list[Slice]:
    """Make a slice of each stretch of kernels of one phase, and in it of one module and those around it."""
    events = activity.trace.events
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    if not len(rows):
        return []
    module, phase = origins.module[rows], origins.phase[rows]
    first = np.flatnonzero(np.diff(module, prepend=-2) | np.diff(phase, prepend=-1))
    starts = events.start_ns[rows][first]
    ends = np.maximum.reduceat(events.end_ns[rows], first)
    ends[:-1] = np.minimum(ends[:-1], starts[1:])  # kernels of several streams overlap
    paths = [
        [] if kind == _OTHER and own < 0 else [PHASES[kind], *_around(origins, own)]
        for own, kind in zip(module[first].tolist(), phase[first].tolist(), strict=True)
    ]
    items = zip([0] * len(first), starts.tolist(), ends.tolist(), paths, strict=True)
    return [Slice(item.start_ns, item.end_ns, item.name, "module") for item in nested_ranges(items)]


def _around(origins: Origins, module: int) -> list[str]:
    path = origins.modules[module].split(".") if module >= 0 else []
    return [".".join(path[: depth + 1]) for depth in range(len(path))]


def _queue(activity: Activity, rows: Column) -> list[tuple[int, float]]:
    """Count at each moment what was launched and has not begun; a launch counts from its call's start."""
    events = activity.trace.events
    launched, begun = events.start_ns[activity.launch[rows]], events.start_ns[rows]
    times = np.concatenate((np.minimum(launched, begun), begun))
    if not len(times):
        return []
    moments, number = np.unique(times, return_inverse=True)
    change = np.repeat((1, -1), len(rows))
    length = np.cumsum(np.bincount(number, weights=change, minlength=len(moments)))
    return list(zip(moments.tolist(), length.tolist(), strict=True))
