"""One account of the device's idle time: every ns of it has one cause, and the causes sum to it.

It spans the steps, to the end of the device's work; a single step also to its own end: of several only the
last one's end would count, where the profiler is being stopped. Without steps it begins at the first event of
the host. Where host and device both stay silent nothing is known, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.device.gaps import Gaps, break_down
from iotrace.analysis.device.modules import is_line_of_program
from iotrace.analysis.device.stream_waits import Queues
from iotrace.analysis.intervals import Coverage, Intervals, distinct, innermost, intersect, length, union
from iotrace.analysis.results import IdlePart, IdleTime
from iotrace.sources.kineto.kinds import Kind, step_of
from iotrace.sources.kineto.trace import Column

CAUSES = (
    *("before_first_kernel", "launch_delay", "data_wait", "blocking_copy", "synchronisation", "allocation"),
    *("communication", "launch_gap", "launch_call", "host", "graph_replay", "stream_wait", "kernel_gap"),
    *("after_last_kernel", "unknown"),
)
EDGES = ("before_first_kernel", "launch_delay", "after_last_kernel")
_AT = {name: number for number, name in enumerate(CAUSES)}
# What a late gap may be covered by, the first of them first; the rest is the host's own work.
_COVERS = ("data_wait", "blocking_copy", "synchronisation", "allocation", "communication", "launch_call")
LAUNCH_NS = 200_000  # up to which the host needs no other reason than the launch of a kernel
_BEHIND_NS = 1_000_000  # up to which a gap is the price of having waited for the device
_MOSTLY = 0.9  # of a cause: what a frame or a call has to cover to be named
_HOST_BACKEND = re.compile(r"(?:gloo|mpi|ucc):")
_ALLOCATES = re.compile(r"(?:cuda|hip)(?:Malloc|Free)\w*$")


class Account:
    """Sums over the traces of a rank, in ns."""

    def __init__(self) -> None:
        self.span = self.idle = 0
        self.sums = np.zeros(len(CAUSES), np.int64)
        self.gaps = np.zeros(len(CAUSES), np.int64)
        self.first_use = np.zeros(len(CAUSES), np.int64)
        self.named: dict[tuple[int, str, str], int] = {}

    def add(self, queues: Queues, gaps: Gaps, waits: Coverage, kernel_gap_ns: int) -> None:
        """Add a trace: `gaps` of all its device, between the first and the last event."""
        activity = queues.activity
        bounds = span_of(activity)
        if bounds is None:
            return
        table = _between(queues, gaps, waits, kernel_gap_ns)
        edges, sides = _edges(activity, bounds, waits)
        clipped = _clipped(gaps, table, bounds)
        self.span += bounds[1] - bounds[0]
        whole = np.concatenate((clipped, sides))
        self.idle += int(whole.sum())
        self.sums += whole.sum(axis=0)
        self.gaps += (whole > 0).sum(axis=0)
        self.first_use += clipped[_first_of_kernel(activity, gaps)].sum(axis=0)
        starts, ends = np.append(gaps.start_ns, edges[0]), np.append(gaps.end_ns, edges[1])
        mostly, host = whole.argmax(axis=1), _Host(activity)
        for cause in np.flatnonzero(whole.sum(axis=0)).tolist():
            own = (whole[:, cause] > 0) & (mostly == cause)
            for kind, name, ns in _named(host, CAUSES[cause], union(starts[own], ends[own])):
                self.named[cause, kind, name] = self.named.get((cause, kind, name), 0) + ns

    def result(self) -> IdleTime | None:
        """Return the account, the costliest cause first; None where there is no span."""
        if not self.span:
            return None
        parts = []
        for cause in np.flatnonzero(self.sums).tolist():
            where, where_ns = self._most(cause, "where")
            call, call_ns = self._most(cause, "call")
            parts.append(
                IdlePart(
                    cause=CAUSES[cause],
                    us=int(self.sums[cause]) / 1e3,
                    gaps=int(self.gaps[cause]),
                    where=where,
                    where_us=where_ns / 1e3 if where else None,
                    call=call,
                    call_us=call_ns / 1e3 if call else None,
                    first_use_us=int(self.first_use[cause]) / 1e3,
                )
            )
        parts.sort(key=lambda part: -part.us)
        return IdleTime(span_us=self.span / 1e3, idle_us=self.idle / 1e3, parts=parts)

    def _most(self, cause: int, kind: str) -> tuple[str | None, int]:
        own = {name: ns for (of, which, name), ns in self.named.items() if (of, which) == (cause, kind)}
        name = max(own, key=lambda each: own[each], default=None)
        return name, 0 if name is None else own[name]


def span_of(activity: Activity) -> tuple[int, int] | None:
    """Find when the account begins and ends; None where the device did nothing."""
    events = activity.trace.events
    device = np.flatnonzero(activity.device)
    if not len(device):
        return None
    first, last = int(events.start_ns[device].min()), int(events.end_ns[device].max())
    (starts, ends), _ = activity.step_spans()
    if len(starts):
        return min(int(starts[0]), last), max(int(ends[0]), last) if len(starts) == 1 else last
    host = activity.ranges | (activity.kinds == Kind.RUNTIME)
    begun = int(events.start_ns[host].min()) if host.any() else first
    return min(begun, first), last


def _first_of_kernel(activity: Activity, gaps: Gaps) -> Mask:
    """Find the gaps that end as a kernel runs for the first time in the trace: it may be loaded then."""
    events, rows = activity.trace.events, np.flatnonzero(activity.device)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    first = rows[np.unique(events.name[rows], return_index=True)[1]]
    found: Mask = np.isin(gaps.ended_by, first)
    return found


def _clipped(gaps: Gaps, table: Column, bounds: tuple[int, int]) -> Column:
    """Leave out of each gap what lies before the account; that part is taken from its causes in order."""
    out = np.clip(bounds[0] - gaps.start_ns, 0, gaps.end_ns - gaps.start_ns)
    found: Column = table.copy()
    for column in range(table.shape[1]):
        taken = np.minimum(found[:, column], out)
        found[:, column] -= taken
        out = out - taken
    return found


def _edges(activity: Activity, bounds: tuple[int, int], waits: Coverage) -> tuple[Intervals, Column]:
    """Divide the time before the first and behind the last event of the device among its causes."""
    events = activity.trace.events
    rows = np.flatnonzero(activity.device)
    first = rows[int(np.argmin(events.start_ns[rows]))]
    begun, ended = int(events.start_ns[first]), int(events.end_ns[rows].max())
    call = int(activity.launch[first])
    launched, returned = (
        (begun, begun) if call < 0 else (int(events.start_ns[call]), int(events.end_ns[call]))
    )
    cuts = np.clip([bounds[0], launched, returned, begun], bounds[0], max(begun, bounds[0]))
    cuts = np.minimum(cuts, np.append(cuts[1:], cuts[-1]))
    starts, ends = np.append(cuts[:-1], ended), np.append(cuts[1:], bounds[1])
    table = np.zeros((4, len(CAUSES)), np.int64)
    lasted, small = ends - starts, begun - launched <= LAUNCH_NS
    # A copy's call may wait for what was launched before the trace.
    calls = "launch_call" if activity.kinds[first] == Kind.KERNEL else "launch_delay"
    causes = ("before_first_kernel", *("launch_gap" if small else each for each in (calls, "launch_delay")))
    for row, cause in enumerate((*causes, "after_last_kernel")):
        waited = 0 if row in (1, 2) else int(waits.within(starts[row : row + 1], ends[row : row + 1])[0])
        table[row, _AT[cause]] += lasted[row] - waited
        table[row, _AT["data_wait"]] += waited
    return (starts, ends), table


def _between(queues: Queues, gaps: Gaps, waits: Coverage, kernel_gap_ns: int) -> Column:
    """Divide each gap between events of the device; ns in the shape (gaps, `CAUSES`)."""
    activity, events = queues.activity, queues.activity.trace.events
    table = np.zeros((len(gaps), len(CAUSES)), np.int64)
    if not len(gaps):
        return table
    lasted = gaps.end_ns - gaps.start_ns
    call = activity.launch[gaps.ended_by]
    known = call >= 0
    late = known & (events.start_ns[np.maximum(call, 0)] > gaps.start_ns)
    _divide_late(activity, gaps, waits, late, table)
    left = np.where(late, 0, lasted)
    graph = known & activity.trace.named(lambda name: "GraphLaunch" in name)[np.maximum(call, 0)]
    in_call = np.clip(events.end_ns[np.maximum(call, 0)] - gaps.start_ns, 0, left)
    in_call = np.where(known & ~graph, in_call, 0)
    told = np.zeros(len(events), np.bool_)
    told[queues.rows[queues.told]] = True
    for cause, amount in (
        ("graph_replay", np.where(graph, left, 0)),
        ("kernel_gap", np.where(lasted < kernel_gap_ns, left, 0)),
        ("launch_gap", np.where(in_call <= LAUNCH_NS, in_call, 0)),
        ("launch_call", in_call),
        ("stream_wait", np.where(told[gaps.ended_by], left, 0)),
        ("unknown", left),
    ):
        taken = np.minimum(amount, left)
        table[:, _AT[cause]] += taken
        left = left - taken
    return table


def _divide_late(activity: Activity, gaps: Gaps, waits: Coverage, late: Mask, table: Column) -> None:
    """Divide the gaps that a launch ended which came too late, by what the host did meanwhile."""
    rows = np.flatnonzero(late)
    starts, ends = gaps.start_ns[rows], gaps.end_ns[rows]
    copies, syncs = activity.blocking_copies, activity.synchronising
    masks: tuple[Mask | Column, ...] = (
        copies,
        syncs,
        (activity.kinds == Kind.RUNTIME) & activity.trace.matching(_ALLOCATES),
        activity.collective_ranges & activity.trace.matching(_HOST_BACKEND),
        distinct(activity.launch[activity.device & (activity.launch >= 0)]),
    )
    covers = [(waits.starts, waits.ends), *(activity.intervals(mask) for mask in masks)]
    parts = break_down(covers, starts, ends)[0]
    for number, cause in enumerate(_COVERS[:-1]):
        table[rows, _AT[cause]] = parts[:, number]
    launching, rest = parts[:, -2], parts[:, -1]
    own = launching + rest
    behind = np.zeros(len(rows), np.bool_)
    for mask, cause in ((copies, "blocking_copy"), (syncs, "synchronisation")):
        at = np.flatnonzero(mask)
        found = innermost(*activity.intervals(at), starts) >= 0
        found &= ~behind & (own <= _BEHIND_NS)
        table[rows, _AT[cause]] += np.where(found, own, 0)
        behind |= found
    small = ~behind & (own <= LAUNCH_NS)
    table[rows, _AT["launch_gap"]] = np.where(small, own, 0)
    large = ~behind & ~small
    loading = large & (launching > LAUNCH_NS)
    table[rows, _AT["launch_call"]] = np.where(loading, launching, 0)
    table[rows, _AT["host"]] = np.where(large, rest + np.where(loading, 0, launching), 0)


# Causes that a call of the runtime makes, and the others that lie in what the host did.
_BY_CALL = {"blocking_copy": "blocking_copies", "synchronisation": "synchronising"}
_BY_HOST = ("before_first_kernel", "after_last_kernel", "host", "launch_call", "allocation")
_MORE_THAN_HALF = 0.5


class _Host(msgspec.Struct, frozen=True, dict=True):
    """What names a place on the host: rows of the threads that launch on the device, or hold the steps."""

    activity: Activity

    @cached_property
    def _rows(self) -> Column:
        activity, thread = self.activity, self.activity.trace.events.thread
        calls = activity.launch[activity.device & (activity.launch >= 0)]
        own = np.isin(thread, distinct(np.concatenate((thread[calls], thread[activity.steps]))))
        return np.flatnonzero(own & (activity.ranges | (activity.kinds == Kind.RUNTIME)))

    def _of(self, kinds: tuple[Kind, ...], test: Callable[[str], bool]) -> Column:
        trace, rows = self.activity.trace, self._rows
        rows = rows[np.isin(self.activity.kinds[rows], kinds)]
        names = distinct(trace.events.name[rows])
        wanted = np.zeros(len(trace.names), np.bool_)
        wanted[[name for name in names.tolist() if test(trace.names[name])]] = True
        return rows[wanted[trace.events.name[rows]]]

    @cached_property
    def frames(self) -> Column:
        """Frames of the program, where stacks were recorded."""
        return self._of((Kind.PYTHON,), is_line_of_program)

    @cached_property
    def ranges(self) -> Column:
        """Operators and ranges but the steps."""
        return self._of((Kind.CPU_OP, Kind.ANNOTATION), lambda name: step_of(name) is None)

    @cached_property
    def calls(self) -> Column:
        """Calls of the runtime."""
        return self._of((Kind.RUNTIME,), lambda _: True)


def _named(host: _Host, cause: str, spans: Intervals) -> Iterable[tuple[str, str, int]]:
    """Name what most of the time of a cause lies in: the program's frame or an operator, and a call.

    Of idle time behind calls that wait for the device it is where these calls were made.
    """
    activity, least = host.activity, _MOSTLY
    if cause in _BY_CALL:
        starts, ends = activity.intervals(np.flatnonzero(getattr(activity, _BY_CALL[cause])))
        meets = Coverage(spans[0], spans[1] + 1).within(starts, ends + 1) > 0
        spans, least = union(starts[meets], ends[meets]), _MORE_THAN_HALF
    elif cause not in _BY_HOST:
        return
    found = _around(activity, host.frames, spans, least) or _around(activity, host.ranges, spans, least)
    if found is not None:
        yield "where", *found
    found = _around(activity, host.calls, spans, least)
    if found is not None:
        yield "call", *found


def _around(activity: Activity, rows: Column, spans: Intervals, least: float) -> tuple[str, int] | None:
    """Name the innermost events, by name, that hold most of some spans, and how much of these."""
    events, whole = activity.trace.events, length(spans)
    rows = (
        rows[(events.end_ns[rows] > spans[0][0]) & (events.start_ns[rows] < spans[1][-1])] if whole else rows
    )
    if not whole or not len(rows):
        return None
    inside = Coverage(*spans).within(events.start_ns[rows], events.end_ns[rows])
    size = len(activity.trace.names)
    sums = np.bincount(events.name[rows], weights=inside, minlength=size)
    lasted = np.bincount(events.name[rows], weights=events.duration_ns[rows], minlength=size)
    hold_most = np.flatnonzero(sums >= least * whole)
    for name in hold_most[np.argsort(lasted[hold_most], kind="stable")].tolist():
        own = rows[events.name[rows] == name]
        held = length(intersect(union(events.start_ns[own], events.end_ns[own]), spans))
        if held >= least * whole:
            return activity.trace.names[name], held
    return None
