"""What the accelerator did in a trace: busy and idle time, communication, and who ended each idle time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from iotrace.analysis.activity import Activity, Intervals
from iotrace.analysis.idle import CLASSES, KERNEL_GAP_US, classify, gaps_of
from iotrace.analysis.intervals import Coverage, intersect, length, pieces, union
from iotrace.analysis.modules import PHASES, places_of
from iotrace.analysis.results import Accelerator, IdleByModule, StreamIdle
from iotrace.sources.kineto_trace import Column


@dataclass(frozen=True)
class DataWaits:
    """Raw data waits, disjoint and in order; per wait its causes in ns where they are known."""

    starts_ns: Column
    ends_ns: Column
    causes: Sequence[dict[str, int]] = field(default_factory=list)


def waits_of(activity: Activity) -> DataWaits:
    """The data waits that the trace itself holds: torch's ranges around ``DataLoader.__next__``."""
    return DataWaits(*union(*activity.intervals(activity.data_waits)))


def accelerator_of(
    activity: Activity, waits: DataWaits | None = None, kernel_gap_us: float = KERNEL_GAP_US
) -> Accelerator | None:
    """The accelerator's figures over the whole trace; None where the trace holds no device activity."""
    events = activity.trace.events
    rows = np.flatnonzero(activity.device)
    if not len(rows):
        return None
    waits = waits_of(activity) if waits is None else waits
    waiting = Coverage(waits.starts_ns, waits.ends_ns)
    gap_ns = round(kernel_gap_us * 1000)
    busy = activity.busy()
    compute = union(*activity.intervals(activity.compute_kernels))
    communication = union(*activity.intervals(activity.collective_kernels))
    memory = union(
        *activity.intervals(activity.device & ~activity.compute_kernels & ~activity.collective_kernels)
    )
    span_ns = int(busy[1][-1] - busy[0][0])
    overlap_ns = length(intersect(compute, communication))
    gaps = gaps_of(activity, rows)
    classes = classify(activity, gaps, waiting, gap_ns)
    return Accelerator(
        span_us=span_ns / 1e3,
        busy_us=length(busy) / 1e3,
        idle_us=(span_ns - length(busy)) / 1e3,
        compute_us=length(compute) / 1e3,
        non_compute_us=(length(busy) - length(compute)) / 1e3,
        comm_us=length(communication) / 1e3,
        memory_us=length(memory) / 1e3,
        comm_comp_overlap_us=overlap_ns / 1e3,
        comm_comp_overlap_pct=_percent(overlap_ns, length(communication)),
        overlap_of_compute_pct=_percent(overlap_ns, length(compute)),
        overlap_of_span_pct=_percent(overlap_ns, span_ns),
        kernel_gap_us=kernel_gap_us,
        idle_by_class_us=_by_class(classes),
        data_wait_by_cause_us=_by_cause(waits, (gaps.start_ns, gaps.end_ns), classes),
        idle_by_module=_by_module(activity, gaps.ended_by, gaps.end_ns - gaps.start_ns),
        streams=[
            StreamIdle(
                device=None if device < 0 else device,
                stream=None if stream < 0 else stream,
                events=len(own),
                busy_us=length(union(events.start_ns[own], events.end_ns[own])) / 1e3,
                idle_by_class_us=_by_class(classify(activity, gaps_of(activity, own), waiting, gap_ns)),
            )
            for device, stream in np.unique(
                np.stack((events.device[rows], events.stream[rows]), axis=1), axis=0
            ).tolist()
            for own in [rows[(events.device[rows] == device) & (events.stream[rows] == stream)]]
        ],
    )


def _percent(part_ns: int, whole_ns: int) -> float | None:
    return 100 * part_ns / whole_ns if whole_ns else None


def _by_class(table: Column) -> dict[str, float]:
    return dict(zip(CLASSES, (table.sum(axis=0) / 1e3).tolist(), strict=True))


def _by_cause(waits: DataWaits, gaps: Intervals, classes: Column) -> dict[str, float] | None:
    """The class data_wait by the causes of the waits: a part of a wait has the causes of the whole wait."""
    if not waits.causes:
        return None
    waited = classes[:, CLASSES.index("data_wait")] > 0
    starts, ends, _, wait = pieces(gaps[0][waited], gaps[1][waited], waits.starts_ns, waits.ends_ns)
    total: dict[str, float] = {}
    for part_ns, number in zip((ends - starts).tolist(), wait.tolist(), strict=True):
        causes = waits.causes[number]
        whole = sum(causes.values())
        for cause, cost_ns in causes.items():
            total[cause] = total.get(cause, 0.0) + (part_ns * cost_ns / whole / 1e3 if whole else 0.0)
    return total


def _by_module(activity: Activity, ended_by: Column, idle_ns: Column) -> list[IdleByModule]:
    """Idle time by the place of the kernel that ended it, communication by the place of its launch."""
    places = places_of(activity)
    events = activity.trace.events
    collectives = np.flatnonzero(activity.collective_kernels)
    keys = (places.module + 1) * len(PHASES) + places.phase
    size = (len(places.modules) + 1) * len(PHASES)

    def total(rows: Column, weights: Column) -> npt.NDArray[np.float64]:
        # A float64 holds 104 days in ns.
        return np.bincount(keys[rows], weights=weights, minlength=size).astype(np.float64)

    idle = total(ended_by, idle_ns)
    communication = total(collectives, events.duration_ns[collectives])
    found = []
    for key in np.flatnonzero((idle > 0) | (communication > 0)).tolist():
        module, phase = divmod(key, len(PHASES))
        found.append(
            IdleByModule(
                module=places.modules[module - 1] if module else None,
                phase=PHASES[phase],
                idle_us=float(idle[key]) / 1e3,
                comm_us=float(communication[key]) / 1e3,
            )
        )
    return sorted(found, key=lambda one: (-one.idle_us, -one.comm_us))
