"""What a rank's traces of torch.profiler say: breakdown, accelerator, how much data wait was exposed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.device.accelerator import KERNEL_GAP_US, DataWaits, accelerator_of, waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.collectives import LateBatch, RankTrace, rank_trace_of
from iotrace.analysis.device.gaps import ROLES, Origin, break_down, roles_of
from iotrace.analysis.device.operators import OperatorTree, operators_of
from iotrace.analysis.efficiency.slow_traced_steps import slow_steps_of
from iotrace.analysis.intervals import Coverage
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.results import Accelerator, Memory, Operator, SlowStep
from iotrace.sources.kineto.trace import Column, KinetoTrace

if TYPE_CHECKING:
    from iotrace.analysis.wait.waits import Waits


class Compute(msgspec.Struct, frozen=True):
    """What a rank's traces say; everything None or empty where it left none."""

    activities: list[Activity]
    waits: list[DataWaits]
    breakdown_ms: dict[str, float] | None
    breakdown_raw_ms: dict[str, float] | None
    breakdown_steps: int | None
    accelerator: Accelerator | None
    operators: list[Operator] | None
    slow_steps: list[SlowStep]

    @property
    def has_device(self) -> bool:
        """Whether the traces show what a device did."""
        return any(activity.device.any() for activity in self.activities)


def compute_of(
    activities: Sequence[Activity],
    explained: Waits | None = None,
    steps: StepTable | None = None,
    kernel_gap_us: float = KERNEL_GAP_US,
    whole: bool = False,
    origin: Origin | None = None,
    counted: Sequence[Activity] | None = None,
) -> Compute:
    """Derive the figures of a rank's traces; `explained` are the waits that the agent recorded, in order.

    A trace without the profiler's steps is broken down by the agent's `steps`, or, with `whole`, as one step.
    `counted` are those parts of the traces of which kernels and operators are summed up, if not of all.
    """
    waits = [_waits(activity, explained) for activity in activities]
    exclusive, raw = [], []
    for activity in activities:
        (starts, ends), _ = activity.step_spans()
        if steps is not None and not len(starts):
            inside = _inside(activity, steps)
            starts, ends = inside["start_ns"], inside["end_ns"]
        if whole and not len(starts):
            starts, ends = activity.whole()
        if len(starts):
            tables = break_down(roles_of(activity), starts, ends)
            exclusive.append(tables[0])
            raw.append(tables[1])
    counted = activities if counted is None else counted
    accelerator = accelerator_of(counted, waits, kernel_gap_us, origin)
    return Compute(
        activities=list(activities),
        waits=waits,
        breakdown_ms=_mean_ms(exclusive),
        breakdown_raw_ms=_mean_ms(raw),
        breakdown_steps=sum(map(len, exclusive)) if exclusive else None,
        accelerator=accelerator,
        operators=_operators(counted) if accelerator is None else accelerator.operators,
        slow_steps=[step for activity in activities for step in slow_steps_of(activity)],
    )


def _operators(activities: Sequence[Activity]) -> list[Operator] | None:
    """Sum up operators of a host without a device; None where none was recorded."""
    found = operators_of([OperatorTree(activity) for activity in activities])
    return [replace(one, device_total_us=None, device_self_us=None) for one in found] or None


def _mean_ms(tables_ns: list[Column]) -> dict[str, float] | None:
    """Compute the mean over all steps by role; None without any step."""
    if not tables_ns:
        return None
    return dict(zip(ROLES, (np.concatenate(tables_ns).mean(axis=0) / 1e6).tolist(), strict=True))


def _waits(activity: Activity, explained: Waits | None) -> DataWaits:
    """Take the agent's waits, which have causes, else those of the trace."""
    span = activity.trace.span_ns()
    if explained is None or not len(explained) or span is None:
        return waits_of(activity)
    begun, ended = explained.deliveries["wait_start_ns"], explained.deliveries["delivered_ns"]
    rows = np.flatnonzero((begun < ended) & (begun < span[1]))
    ends = ended[rows]
    # Two loaders' waits may overlap.
    starts = np.maximum(begun[rows], np.maximum.accumulate(np.append(0, ends))[:-1])
    kept = (starts < ends) & (starts < span[1])
    causes = [item.causes for item in explained[rows[kept]]]
    return DataWaits(starts[kept], ends[kept], causes, rows[kept].tolist())


def _inside(activity: Activity, steps: StepTable) -> StepTable:
    """Choose the steps that lie wholly inside the trace."""
    span = activity.trace.span_ns()
    if span is None:
        return steps[:0]
    return steps[(span[0] <= steps["start_ns"]) & (steps["end_ns"] <= span[1])]


def exposed_by_kernels(compute: Compute, steps: StepTable) -> list[tuple[int, int]]:
    """Find, per step that lies wholly inside a trace of a device, its exposed wait and its length; ns."""
    found = []
    for activity in compute.activities:
        if not activity.device.any():
            continue
        busy = Coverage(*activity.busy())
        for step in _inside(activity, steps):
            starts = np.array([awaited.wait_start_ns for awaited in step.awaited], dtype=np.int64)
            ends = np.array([awaited.delivered_ns for awaited in step.awaited], dtype=np.int64)
            found.append((step.wait_ns - int(busy.within(starts, ends).sum()), step.duration_ns))
    return found


def memory_in(traces: Sequence[KinetoTrace]) -> Memory | None:
    """Sum up what traces recorded of memory; few do, so it is imported where one does."""
    if not any(len(trace.memory.bytes) for trace in traces):
        return None
    from iotrace.analysis.program.memory import memory_of

    return memory_of(traces)


class Beside(msgspec.Struct, frozen=True):
    """What a session knows of a rank beside its trace: its waits by batch, and how far its clock is known."""

    explained: Waits | None = None
    clock_bound_ns: int | None = None


def compared_trace(rank: int, compute: Compute, beside: Beside | None = None) -> RankTrace | None:
    """Choose what of a rank is compared with the others: its first trace; None where it left none."""
    if not compute.activities:
        return None
    own, waits = beside or Beside(), compute.waits[0]
    batches_of = None if own.explained is None else partial(_batches_of, own.explained, waits)
    return rank_trace_of(rank, compute.activities[0], waits, own.clock_bound_ns, batches_of)


def _batches_of(explained: Waits, waits: DataWaits, first: int) -> list[LateBatch | None]:
    """Name the batch of each wait from `first` on, its worker, and its costliest cause and file."""
    rows = np.array(waits.rows[first:], np.int64)
    found: list[LateBatch | None] = []
    for item in explained[rows]:
        file = max(item.files, key=lambda path: sum(item.files[path]), default=None)
        cause = item.cause if item.causes[item.cause] > 0 else None
        made = item.delivery
        found.append(LateBatch(made.index, made.worker, made.pid, cause, file))
    return found
