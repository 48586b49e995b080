"""What is derived of a device for its timeline: idle times by whose fault, critical path, modules, its use.

An idle time of the report is a slice of the same start and length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iotrace.analysis.device.accelerator import DataWaits
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.critical_path import stretches_of
from iotrace.analysis.device.gaps import CLASSES, MOST_GAPS, classify, gaps_of, names_of
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import PHASES, Origins, nested_ranges
from iotrace.analysis.device.stream_waits import Queues
from iotrace.analysis.intervals import Coverage
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column, Floats
from iotrace.timeline.model import Counter, Slice, Track, known

IDLE, PATH, MODULES, QUEUE = "idle", "critical path", "modules", "launch queue"
FILLED, BANDWIDTH = "SM efficiency", "memory bandwidth"  # of kernels; of copies and sets
_SHORT = CLASSES.index("kernel_wait")
_OTHER = PHASES.index("other")
Points = list[tuple[int, float]]


class Derived(NamedTuple):
    """What one device gets: tracks above its streams, and counters."""

    tracks: list[Track]
    counters: list[Counter]


def derive_tracks(
    activity: Activity, waits: DataWaits, kernel_gap_us: float, owner: Column, prefix: str = ""
) -> dict[int, Derived]:
    """Derive the tracks of each device; `owner` tells whose each event of the trace is.

    Idle times between kernels that the host launched in time are left out (class ``kernel_wait``), except
    where they are among the longest.
    """
    window = Window.of(activity)
    derived: dict[int, Derived] = {}
    for number, idle in _idle(window, waits, round(kernel_gap_us * 1000), owner).items():
        derived.setdefault(number, Derived([], [])).tracks.append(Track(f"{prefix}{IDLE}", idle))
    numbers, events = np.unique(owner[activity.device], return_counts=True)
    if len(numbers) and (path := _path(activity)):  # one, of all devices: it is shown at the busiest
        derived.setdefault(int(numbers[events.argmax()]), Derived([], [])).tracks.append(
            Track(f"{prefix}{PATH}", path)
        )
    for number in numbers.tolist():
        of_device = activity.device & (owner == number)
        ranges = _modules(activity, window.origins, np.flatnonzero(of_device & activity.compute_kernels))
        points = _queue(activity, np.flatnonzero(of_device & (activity.launch >= 0)))
        own = derived.setdefault(number, Derived([], []))
        own.tracks.extend([Track(MODULES, ranges)] if ranges else [])
        counters = (
            (QUEUE, points, "length"),
            (FILLED, _filled(window, np.flatnonzero(of_device & (activity.kinds == Kind.KERNEL))), "%"),
            (
                BANDWIDTH,
                _bandwidth(
                    activity, np.flatnonzero(of_device & np.isin(activity.kinds, (Kind.MEMCPY, Kind.MEMSET)))
                ),
                "GB/s",
            ),
        )
        own.counters.extend(
            Counter(f"{prefix}{name}", values, unit) for name, values, unit in counters if values
        )
    return derived


def _idle(window: Window, waits: DataWaits, kernel_gap_ns: int, owner: Column) -> dict[int, list[Slice]]:
    """Make a slice of each idle time, called by its class and what ended it, on the device that went on."""
    activity = window.activity
    gaps = gaps_of(activity, np.flatnonzero(activity.device))
    classes = classify(activity, gaps, Coverage(waits.starts_ns, waits.ends_ns), kernel_gap_ns)
    longest = np.argsort(gaps.start_ns - gaps.end_ns, kind="stable")[:MOST_GAPS]
    shown = classes.argmax(axis=1) != _SHORT
    shown[longest] = True
    wanted = np.flatnonzero(shown)
    idle: dict[int, list[Slice]] = {}
    numbers = owner[gaps.ended_by[wanted]].tolist()
    for number, at, gap in zip(
        numbers, wanted.tolist(), names_of(window, gaps, classes, wanted), strict=True
    ):
        name = " · ".join((IDLE, gap.kind.replace("_", " "), gap.op or gap.after))
        about = {"module": gap.module, "launched by": gap.op, "before": gap.before, "after": gap.after}
        about["source"] = gap.source
        item = Slice(int(gaps.start_ns[at]), int(gaps.end_ns[at]), name, IDLE, known(**about))
        idle.setdefault(number, []).append(item)
    return idle


def _path(activity: Activity) -> list[Slice]:
    """Make a slice of each stretch of the steps' critical paths, called by what it lies in."""
    return [
        Slice(start_ns, end_ns, name or kind.replace("_", " "), PATH, {"kind": kind})
        for start_ns, end_ns, kind, name in stretches_of(Queues(activity))
    ]


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


def _filled(window: Window, rows: Column) -> Points:
    """Tell at each moment how many of the multiprocessors had a block, in per cent; nothing where unknown."""
    blocks = window.details.of(window.details.blocks_per_sm, rows)
    if np.isnan(blocks).any():
        return []
    return [
        (time_ns, min(share, 100.0))
        for time_ns, share in _sums(window.activity, rows, 100 * np.minimum(blocks, 1))
    ]


def _bandwidth(activity: Activity, rows: Column) -> Points:
    """Tell at each moment the GB/s of copies and sets under way; nothing where one has unknown bytes."""
    events = activity.trace.events
    rows = rows[events.duration_ns[rows] > 0]
    if (events.bytes[rows] < 0).any():
        return []
    return _sums(activity, rows, events.bytes[rows] / events.duration_ns[rows])


def _sums(activity: Activity, rows: Column, values: Floats) -> Points:
    """Sum up at each moment the values of the `rows` that are under way."""
    events = activity.trace.events
    moments, sums = _running(events.start_ns[rows], events.end_ns[rows], values)
    sums = np.maximum(np.round(sums, 3), 0.0)  # with nothing under way it is not quite 0
    return list(zip(moments.tolist(), sums.tolist(), strict=True))


def _queue(activity: Activity, rows: Column) -> Points:
    """Count at each moment what was launched and has not begun; a launch counts from its call's start."""
    events = activity.trace.events
    launched, begun = events.start_ns[activity.launch[rows]], events.start_ns[rows]
    moments, length = _running(np.minimum(launched, begun), begun, np.ones(len(rows)))
    return list(zip(moments.tolist(), length.tolist(), strict=True))


def _running(starts_ns: Column, ends_ns: Column, values: Floats) -> tuple[Column, Floats]:
    """Return each moment at which a value begins or ends, and the sum of the values from there on."""
    moments, number = np.unique(np.concatenate((starts_ns, ends_ns)), return_inverse=True)
    change = np.bincount(number, weights=np.concatenate((values, -values)), minlength=len(moments))
    return moments, np.cumsum(change)
