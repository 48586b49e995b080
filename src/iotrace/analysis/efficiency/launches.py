"""Calls of the runtime: what each costs the host; of launches how long kernels wait in the queue, too.

Communication by kind and process group: how much, how fast, and how much of it no computation hid.

How long a device was busy for each phase of a step, how long with nothing but communication.

And how long it was idle, by phase and what ended that: the module, without one the operator or kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.activity import Activity, summed_by
from iotrace.analysis.device.gaps import CLASSES, Gaps, break_down
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import PHASES, rows_around
from iotrace.analysis.intervals import length, subtract, union
from iotrace.analysis.results import CollectiveKind, DevicePhase, IdleByOrigin, Launches, RuntimeCall
from iotrace.sources.kineto.collectives import Collective
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column, Numbers

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


# What a name of a kernel says of its kind, where its arguments say nothing; in this order.
_COLLECTIVE_KINDS = {
    "all_reduce": re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE),
    "all_gather": re.compile(r"all_?gather", re.IGNORECASE),
    "reduce_scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all_to_all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "send_recv": re.compile(r"send|recv", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
    "dispatch": re.compile(r"dispatch", re.IGNORECASE),
    "combine": re.compile(r"combine", re.IGNORECASE),
    "reduce": re.compile(r"reduce", re.IGNORECASE),
    "barrier": re.compile(r"barrier", re.IGNORECASE),
}
OTHER = "other"
_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "short", "float16", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}


class _Sums(msgspec.Struct):
    calls: int = 0
    total: int = 0
    exposed: int = 0
    bytes: int | None = 0
    group_size: int | None = None


def collectives_of(windows: Sequence[Activity]) -> list[CollectiveKind]:
    """Sum up the kernels that communicate by kind and group, the costliest first."""
    sums: dict[tuple[str, str | None], _Sums] = {}
    for activity in windows:
        _add(sums, activity)
    return sorted(
        (_kind(kind, group, one) for (kind, group), one in sums.items()), key=lambda one: -one.total_us
    )


def _add(sums: dict[tuple[str, str | None], _Sums], activity: Activity) -> None:
    trace, events = activity.trace, activity.trace.events
    rows = np.flatnonzero(activity.collective_kernels)
    compute = union(*activity.intervals(activity.compute_kernels))
    members: dict[tuple[str, str | None], list[int]] = {}
    for row, number, name in zip(
        rows.tolist(), match_collectives(activity)[rows].tolist(), events.name[rows].tolist(), strict=True
    ):
        known = trace.collectives[number] if number >= 0 else None
        kind = kind_of(known.name) if known is not None else OTHER
        kind = kind_of(trace.names[name]) if kind == OTHER else kind
        key = kind, known.group if known is not None else None
        members.setdefault(key, []).append(row)
        one = sums.setdefault(key, _Sums())
        size = None
        if known is not None:
            one.group_size = one.group_size or known.group_size
            size = bytes_of(known)
        one.bytes = one.bytes + size if one.bytes is not None and size is not None else None
    for key, own in members.items():
        one = sums[key]
        one.calls += len(own)
        one.total += int(events.duration_ns[own].sum())
        one.exposed += length(subtract(union(events.start_ns[own], events.end_ns[own]), compute))


def match_collectives(activity: Activity) -> Numbers:
    """Find per event which of the trace's collectives it is; -1 unknown.

    A kernel that does not say so itself is that of the range around its launch: of ``record_param_comms``
    where that tells, else of its backend's (``nccl:all_reduce``).
    """
    events = activity.trace.events
    found: Numbers = events.collective.copy()
    rows = np.flatnonzero(activity.collective_kernels & (found < 0) & (activity.launch >= 0))
    known = (events.collective >= 0) & activity.ranges
    for mask in (known & activity.collective_ranges, known & ~activity.collective_ranges):
        if len(rows) and mask.any():
            around = rows_around(activity, mask, activity.launch[rows])
            told = around >= 0
            found[rows[told]] = events.collective[around[told]]
    return found


def bytes_of(one: Collective) -> int | None:
    """Compute what a call moves of a rank, the larger of in and out; None where the trace does not tell."""
    width = _BYTES.get((one.dtype or "").lower())
    return one.elements * width if one.elements is not None and width is not None else None


def kind_of(name: str) -> str:
    """Name the kind of a collective: ``all_reduce`` for ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""
    return next((kind for kind, pattern in _COLLECTIVE_KINDS.items() if pattern.search(name)), OTHER)


def _kind(kind: str, group: str | None, one: _Sums) -> CollectiveKind:
    # Bytes in a ns are GB/s; a call without bytes (a barrier) has no bandwidth.
    algorithm = one.bytes / one.total if one.bytes and one.total else None
    factor = bus_factor(kind, one.group_size)
    return CollectiveKind(
        kind=kind,
        group=group,
        group_size=one.group_size,
        calls=one.calls,
        bytes=one.bytes,
        total_us=one.total / 1e3,
        exposed_us=one.exposed / 1e3,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=None if algorithm is None or factor is None else algorithm * factor,
    )


def bus_factor(kind: str, size: int | None) -> float | None:
    """What nccl-tests multiplies the algorithm's bandwidth by (its doc/PERFORMANCE.md), for `size` ranks."""
    if size is None or size < 1:
        return None
    share = (size - 1) / size
    once = dict.fromkeys(("broadcast", "reduce", "send_recv"), 1.0)
    parts = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), share)
    return {"all_reduce": 2 * share, **once, **parts}.get(kind)


NAMES = (*PHASES[:-1], "loader", "elsewhere")
_MODULE, _OPERATOR, _KERNEL = range(3)
_KINDS = ("module", "operator", "kernel")
Origin = tuple[str, str, str]  # kind, name, phase
_LOADER, _ELSEWHERE = NAMES.index("loader"), NAMES.index("elsewhere")


class PhaseTimes(msgspec.Struct):
    """Sums over windows, in ns, by phase; `seen`: whether a range told of that phase.

    Each instant that the device is busy belongs to one phase: that of the kernel that computes, else that of
    the communication, else that of the copy; of several at once the first of `NAMES` counts.
    """

    seen: set[str] = msgspec.field(default_factory=set)
    busy: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))
    communication: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))
    alone: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))

    def add(self, window: Window) -> None:
        """Add one trace."""
        activity, phases = window.activity, _phases(window)
        events = activity.trace.events
        self.seen |= window.origins.seen
        if activity.data_waits.any():
            self.seen.add("loader")
        kinds = (activity.compute_kernels, activity.collective_kernels, activity.memory_operations)
        roles = [
            activity.intervals(mask & (phases == phase)) for mask in kinds for phase in range(len(NAMES))
        ]
        rows = np.flatnonzero(activity.device)
        span = events.start_ns[rows].min(keepdims=True), events.end_ns[rows].max(keepdims=True)
        own = break_down(roles, *span)[0][0, : len(roles)].reshape(len(kinds), len(NAMES))
        self.busy += own.sum(axis=0)
        self.alone += own[1]
        self.communication += [length(union(*each)) for each in roles[len(NAMES) : 2 * len(NAMES)]]

    def rows(self) -> list[DevicePhase] | None:
        """All phases in order, whose times sum to the busy time; None where no launch lies in a known one."""
        if not (self.busy + self.communication)[: len(PHASES) - 1].any():
            return None
        self.seen.add("elsewhere")
        table = (np.stack((self.busy, self.communication, self.alone), axis=1) / 1e3).tolist()
        return [
            DevicePhase(phase=name, busy_us=busy_us, comm_us=comm_us, comm_alone_us=alone_us)
            if name in self.seen
            else DevicePhase(phase=name)
            for name, (busy_us, comm_us, alone_us) in zip(NAMES, table, strict=True)
        ]


def _phases(window: Window) -> npt.NDArray[np.signedinteger]:
    """Find each device event's phase (index of `NAMES`); what a loader's range launched is the loader's."""
    activity = window.activity
    phases: npt.NDArray[np.signedinteger] = window.origins.phase.copy()
    phases[phases == PHASES.index("other")] = _ELSEWHERE
    if activity.data_waits.any():
        rows = np.flatnonzero(activity.device & (activity.launch >= 0))
        inside = rows_around(activity, activity.data_waits, activity.launch[rows]) >= 0
        phases[rows[inside]] = _LOADER
    return phases


class IdleOrigins(dict[Origin, Column]):
    """Sums in ns by origin: how many gaps it ended, then their idle time by class."""

    def add(self, window: Window, gaps: Gaps, classes: Column) -> None:
        """Add the gaps of a trace; `classes` divides each."""
        trace, origins = window.activity.trace, window.origins
        after = gaps.ended_by
        module, operator = origins.module[after], window.tree.names(window.tree.launcher[after])
        kernel = trace.events.name[after].astype(np.int64)
        kind = np.where(module >= 0, _MODULE, np.where(operator >= 0, _OPERATOR, _KERNEL))
        number = np.choose(kind, (module, operator, kernel))
        size = max(len(trace.names), len(origins.modules)) + 1
        keys = (kind * size + number) * len(PHASES) + origins.phase[after]
        for key, row in summed_by(keys, np.ones(len(keys)), *classes.T):
            rest, phase = divmod(key, len(PHASES))
            which, at = divmod(rest, size)
            name = origins.modules[at] if which == _MODULE else trace.names[at]
            origin = _KINDS[which], name, PHASES[phase]
            self[origin] = self[origin] + row if origin in self else row

    def rows(self) -> list[IdleByOrigin]:
        """Make the rows, the longest idle time first."""
        found = [
            IdleByOrigin(
                kind=kind,
                name=name,
                phase=phase,
                gaps=int(sums[0]),
                idle_us=float(sums[1:].sum()) / 1e3,
                idle_by_class_us=dict(zip(CLASSES, (sums[1:] / 1e3).tolist(), strict=True)),
            )
            for (kind, name, phase), sums in self.items()
        ]
        return sorted(found, key=lambda one: (-one.idle_us, one.name))
