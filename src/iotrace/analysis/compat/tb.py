"""The step-time breakdown as torch-tb-profiler 0.4.3 computes it, quirks included.

For proof alone: where both tools mean the same, equal figures show that the interval arithmetic is right.
What it does otherwise: it knows ``Runtime`` but not ``cuda_runtime``, of ranges on the host those of ten
collectives alone, and it extends steps to the end of what they launched.
"""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Mask, steps_in_order
from iotrace.analysis.device.gaps import ROLES
from iotrace.analysis.intervals import Coverage, Intervals, intersect, subtract, union
from iotrace.sources.kineto.kinds import Kind, is_data_wait
from iotrace.sources.kineto.trace import KinetoTrace

_COLLECTIVES = frozenset(
    f"{library}:{name}"
    for library in ("nccl", "gloo")
    for name in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
)
_FEWER = 0.8  # a last step with fewer device events than this share of the one before is left out


class TensorBoard(msgspec.Struct, frozen=True):
    """Mean us per step by role, the steps' numbers, and the share of time with a kernel by device."""

    steps: list[int]
    mean_us: dict[str, float]
    total_us: float
    gpu_utilization: dict[int, float | None]


def tensorboard(trace: KinetoTrace) -> TensorBoard | None:
    """Compute what TensorBoard's profiler plugin says of `trace`; None with neither steps nor operators."""
    events = trace.events
    kinds = np.where(events.instant, Kind.OTHER, trace.kinds)
    operators = kinds == Kind.CPU_OP
    annotations = (kinds == Kind.ANNOTATION) | (kinds == Kind.GPU_ANNOTATION)
    steps = (operators | annotations) & trace.named(lambda name: name.startswith("ProfilerStep#"))
    collectives = (operators | annotations) & trace.named(_COLLECTIVES.__contains__)
    data_waits = operators & trace.named(is_data_wait)
    kernels = kinds == Kind.KERNEL
    # A kernel communicates if a collective's range has its external id.
    communicating = kernels & np.isin(events.external_id, events.external_id[collectives])
    runtime = (kinds == Kind.RUNTIME) & _category_is(trace, "runtime")
    masks = (
        kernels & ~communicating,
        kinds == Kind.MEMCPY,
        kinds == Kind.MEMSET,
        collectives | communicating,
        runtime,
        data_waits,
        operators & ~(steps | data_waits | collectives),
    )
    if not (steps | operators).any():
        return None
    roles = [union(events.start_ns[mask], events.end_ns[mask]) for mask in masks]
    spans, numbers = _steps(trace, steps, operators)
    device = kernels | (kinds == Kind.MEMCPY) | (kinds == Kind.MEMSET)
    spans, numbers = _with_device(trace, spans, numbers, device, runtime)
    costs = _costs(roles, spans)
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*spans, strict=True))
    means = [Coverage(*cost).within(starts, ends).mean() / 1e3 for cost in costs]
    whole_ns = spans[-1][1] - spans[0][0]
    utilization: dict[int, float | None] = {}
    for number in np.unique(events.device[kernels]).tolist():
        own = kernels & (events.device == number)
        busy_ns = Coverage(events.start_ns[own], events.end_ns[own]).within(starts[:1], ends[-1:])[0]
        utilization[number] = float(busy_ns / whole_ns) if whole_ns else None
    return TensorBoard(
        steps=numbers,
        mean_us=dict(zip(ROLES, map(float, means), strict=True)),
        total_us=float((ends - starts).mean() / 1e3),
        gpu_utilization=utilization,
    )


def _category_is(trace: KinetoTrace, name: str) -> Mask:
    table = np.array([category.lower() == name for category in trace.categories] or [False], dtype=np.bool_)
    return table[trace.events.category]


def _steps(trace: KinetoTrace, steps: Mask, operators: Mask) -> tuple[list[tuple[int, int]], list[int]]:
    """The steps in order of their start; without any, one step from the first to the last operator."""
    events = trace.events
    if not steps.any():
        rows = np.flatnonzero(operators)
        return [(int(events.start_ns[rows].min()), int(events.end_ns[rows].max()))], [0]
    (starts, ends), numbers = steps_in_order(trace, steps)
    return list(zip(starts.tolist(), ends.tolist(), strict=True)), numbers


def _with_device(
    trace: KinetoTrace, spans: list[tuple[int, int]], numbers: list[int], device: Mask, runtime: Mask
) -> tuple[list[tuple[int, int]], list[int]]:
    """The steps, each until the end of what it launched; a last step that launched little is left out."""
    starts, ends = trace.events.start_ns.tolist(), trace.events.end_ns.tolist()
    launched = _launched(trace, device, runtime)
    first_ns: list[int | None] = [None] * len(spans)
    last_ns = [0] * len(spans)
    counts = [0] * len(spans)
    matched: set[int] = set()
    step = 0
    for call in sorted(launched, key=lambda row: starts[row]):
        while step < len(spans) and starts[call] >= spans[step][1]:
            step += 1
        if step == len(spans):
            break
        if starts[call] < spans[step][0] or ends[call] > spans[step][1]:
            continue
        for row in launched[call]:
            known = first_ns[step]
            first_ns[step] = starts[row] if known is None else min(known, starts[row])
            last_ns[step] = max(last_ns[step], ends[row])
            counts[step] += 1
            matched.add(row)
    if not matched:
        return spans, numbers
    previous = spans[0][0]
    first = first_ns[0]
    if first is not None:
        others = (row for row in np.flatnonzero(device).tolist() if row not in matched)
        previous = max([previous, *(ends[row] for row in others if ends[row] < first)])
    extended = []
    for number, (start, end) in enumerate(spans):
        start = max(previous, start)
        previous = max(start, end, last_ns[number]) if first_ns[number] is not None else max(end, start)
        extended.append((start, previous))
    last = max(number for number, count in enumerate(counts) if count)
    keep = last if last > 0 and counts[last - 1] * _FEWER > counts[last] else last + 1
    return (extended[:keep], numbers[:keep]) if len(extended) > 1 else (extended, numbers)


def _launched(trace: KinetoTrace, device: Mask, runtime: Mask) -> dict[int, list[int]]:
    """Per runtime call the device events of its correlation: those that wait for it, and later ones."""
    events = trace.events
    rows = np.flatnonzero(device | runtime)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    is_call = runtime[rows].tolist()
    launched: dict[int, list[int]] = {}
    calls: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    for row, call, key in zip(rows.tolist(), is_call, events.correlation[rows].tolist(), strict=True):
        if call:
            calls[key] = row
            launched[row] = waiting.pop(key, [])
        elif key in calls:
            launched[calls[key]].append(row)
        else:
            waiting.setdefault(key, []).append(row)
    return launched


def _costs(roles: list[Intervals], spans: list[tuple[int, int]]) -> list[Intervals]:
    """What each role gets of the steps, `other` last. Where nothing is left tb starts anew."""
    table = np.array(spans, dtype=np.int64)
    steps = union(table[:, 0], table[:, 1])
    left: Intervals = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    costs = []
    for role in roles:
        if len(left[0]):
            cost = intersect(left, role)
        else:
            cost, left = role, steps
        costs.append(cost)
        left = subtract(left, cost)
    return [*costs, left]
