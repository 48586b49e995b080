"""Times in which the device did nothing: whose fault each was, and what stands around the longest of them.

Where each step's time went: every instant belongs to the first role of `ROLES` that covers it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import program_lines
from iotrace.analysis.device.stream_waits import Queues
from iotrace.analysis.intervals import Coverage, Intervals, outer_first
from iotrace.analysis.results import Gap
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

CLASSES = ("data_wait", "host_wait", "kernel_wait", "other")
# What the class `other` is made of, in which the launch had begun as the gap did.
OTHERS = ("graph_replay", "launch_call", "stream_wait", "unknown_launch", "unexplained")
_DATA_WAIT, _HOST_WAIT, _KERNEL_WAIT, _OTHER = range(4)
_UNKNOWN_LAUNCH = -(2**62)
MOST_GAPS = 10


class Gaps(msgspec.Struct, frozen=True):
    """Gaps ``[start, end)`` in which nothing ran, each with the row of the event that ended it."""

    start_ns: Column
    end_ns: Column
    ended_by: Column

    def __len__(self) -> int:
        return len(self.start_ns)


def gaps_of(activity: Activity, rows: Column) -> Gaps:
    """Find the gaps between the given events of the device (a stream's, or all)."""
    events = activity.trace.events
    rows = rows[outer_first(events.start_ns[rows], events.end_ns[rows])]
    starts, ends = events.start_ns[rows], np.maximum.accumulate(events.end_ns[rows])
    gap = np.flatnonzero(starts[1:] > ends[:-1])
    return Gaps(ends[gap], starts[gap + 1], rows[gap + 1])


def classify(activity: Activity, gaps: Gaps, waits: Coverage, kernel_gap_ns: int) -> Column:
    """Divide each gap among the classes; returns ns in the shape (gaps, `CLASSES`), a row sums to its gap.

    `host_wait`: the kernel was launched after the gap had begun; `data_wait` is its part inside the raw data
    waits. Else `kernel_wait` where the gap is shorter than `kernel_gap_ns`, or `other`.
    """
    lengths = gaps.end_ns - gaps.start_ns
    host = activity.launched_ns(gaps.ended_by, _UNKNOWN_LAUNCH) > gaps.start_ns
    short = ~host & (lengths < kernel_gap_ns)
    table = np.zeros((len(gaps), len(CLASSES)), dtype=np.int64)
    table[:, _DATA_WAIT] = np.where(host, waits.within(gaps.start_ns, gaps.end_ns), 0)
    table[:, _HOST_WAIT] = np.where(host, lengths, 0) - table[:, _DATA_WAIT]
    table[:, _KERNEL_WAIT] = np.where(short, lengths, 0)
    table[:, _OTHER] = np.where(host | short, 0, lengths)
    return table


def other_parts(queues: Queues, gaps: Gaps, classes: Column) -> dict[str, int]:
    """Divide the class `other` by how what ended each gap was launched; ns by `OTHERS`.

    `launch_call`: while the call that launched it had not returned. Else `stream_wait` if its stream was told
    right before the launch to wait for another one.
    """
    activity, events = queues.activity, queues.activity.trace.events
    call, idle_ns = activity.launch[gaps.ended_by], classes[:, _OTHER]
    known = call >= 0
    graph = known & activity.trace.named(lambda name: "GraphLaunch" in name)[np.maximum(call, 0)]
    told = np.zeros(len(events), dtype=np.bool_)
    told[queues.rows[queues.told]] = True
    in_call = np.minimum(events.end_ns[np.maximum(call, 0)] - gaps.start_ns, idle_ns)
    in_call = np.where(known & ~graph, np.maximum(in_call, 0), 0)
    rest, waits = idle_ns - in_call, told[gaps.ended_by]
    parts = {
        "graph_replay": rest[graph],
        "launch_call": in_call,
        "stream_wait": rest[known & ~graph & waits],
        "unknown_launch": rest[~known],
        "unexplained": rest[known & ~graph & ~waits],
    }
    return {name: int(parts[name].sum()) for name in OTHERS}


class Origin(msgspec.Struct, frozen=True):
    """What `iotrace open` shows, and where it begins to count seconds; None: at the trace's first event."""

    path: str
    start_ns: int | None = None

    def command(self, at_s: float) -> str:
        """Return the command that shows the idle time around `at_s`."""
        return f"iotrace open {shlex.quote(self.path)} --at {at_s:.6f}"


def named_gaps(
    window: Window, gaps: Gaps, classes: Column, number: int, origin: Origin | None = None
) -> list[Gap]:
    """Name the longest gaps of a trace, the `number`-th of its rank: what ran around each, who ended it."""
    lengths = gaps.end_ns - gaps.start_ns
    longest = np.argsort(-lengths, kind="stable")[:MOST_GAPS]
    return names_of(window, gaps, classes, longest, number, origin)


def names_of(
    window: Window, gaps: Gaps, classes: Column, wanted: Column, number: int = 0, origin: Origin | None = None
) -> list[Gap]:
    """Name those of `gaps` that stand at `wanted`; `origin` is the trace where a session is not known."""
    activity, trace, tree = window.activity, window.activity.trace, window.tree
    events, lengths = trace.events, gaps.end_ns - gaps.start_ns
    rows = np.flatnonzero(activity.device)
    rows = rows[np.argsort(events.end_ns[rows], kind="stable")]
    before = rows[np.searchsorted(events.end_ns[rows], gaps.start_ns[wanted])]
    first_ns, _ = trace.span_ns() or (0, 0)
    origin = origin or Origin(str(trace.path))
    shown_from_ns = first_ns if origin.start_ns is None else origin.start_ns
    calls = activity.launch[gaps.ended_by[wanted]]
    lines = np.where(calls >= 0, program_lines(activity, np.maximum(calls, 0)), -1)
    found = []
    for at, row, line in zip(wanted.tolist(), before.tolist(), lines.tolist(), strict=True):
        after = int(gaps.ended_by[at])
        launcher, module = int(tree.launcher[after]), int(window.origins.module[after])
        # Its middle: a time that is written in us still lies in it.
        at_s = (int(gaps.start_ns[at]) + int(lengths[at]) // 2 - shown_from_ns) / 1e9
        found.append(
            Gap(
                window=number,
                start_us=(int(gaps.start_ns[at]) - first_ns) / 1e3,
                us=int(lengths[at]) / 1e3,
                before=trace.names[events.name[row]],
                after=trace.names[events.name[after]],
                op=trace.names[events.name[tree.rows[launcher]]] if launcher >= 0 else None,
                module=window.origins.modules[module] if module >= 0 else None,
                kind=CLASSES[int(classes[at].argmax())],
                at_s=at_s,
                command=origin.command(at_s),
                source=trace.names[events.name[line]] if line >= 0 else None,
            )
        )
    return found


def largest(gaps: Iterable[Gap]) -> list[Gap]:
    """Keep the longest of `gaps`, in that order."""
    return sorted(gaps, key=lambda gap: -gap.us)[:MOST_GAPS]


# Of TensorBoard's profiler plugin, in its order.
ROLES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_op", "other")


def roles_of(activity: Activity) -> list[Intervals]:
    """Find the intervals of every role but `other`.

    Collectives are communication, as kernels by their name, on the host by their range.
    """
    kinds = activity.kinds
    masks = (
        activity.compute_kernels,
        kinds == Kind.MEMCPY,
        kinds == Kind.MEMSET,
        activity.collective_kernels | activity.collective_ranges,
        kinds == Kind.RUNTIME,
        activity.data_waits,
        activity.operators,
    )
    return [activity.intervals(mask) for mask in masks]


def break_down(roles: Sequence[Intervals], starts_ns: Column, ends_ns: Column) -> tuple[Column, Column]:
    """Divide each step ``[starts_ns[i], ends_ns[i])`` among `roles`, the first of which is served first.

    Returns two tables of ns in the shape (steps, `ROLES`): rows of the first sum to their steps, the second
    has each role's own length. What no role covers is `other` in both.
    """
    covered_before = np.zeros(len(starts_ns), dtype=np.int64)
    covered_starts = covered_ends = np.empty(0, dtype=np.int64)
    exclusive, raw = [], []
    for starts, ends in roles:
        own = Coverage(starts, ends)
        raw.append(own.within(starts_ns, ends_ns))
        so_far = Coverage(
            np.concatenate((covered_starts, own.starts)), np.concatenate((covered_ends, own.ends))
        )
        covered_starts, covered_ends = so_far.starts, so_far.ends
        covered = so_far.within(starts_ns, ends_ns)
        exclusive.append(covered - covered_before)
        covered_before = covered
    rest = np.maximum(ends_ns - starts_ns, 0) - covered_before
    return np.stack([*exclusive, rest], axis=1), np.stack([*raw, rest], axis=1)
