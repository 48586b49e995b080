"""Where each step's time went: every instant belongs to the first role of `ROLES` that covers it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.intervals import Coverage, Intervals
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

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
