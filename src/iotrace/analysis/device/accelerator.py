"""What the accelerator did in a trace: busy and idle time, communication, and who ended each idle time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.critical_path import critical_path_of
from iotrace.analysis.device.gaps import (
    CLASSES,
    Gaps,
    Origin,
    classify,
    gaps_of,
    largest,
    named_gaps,
    other_parts,
)
from iotrace.analysis.device.idle_time import Account
from iotrace.analysis.device.kernels import (
    Window,
    categories_of,
    filling_of,
    kernels_of,
    memory_operations_of,
    without_launch,
)
from iotrace.analysis.device.modules import PHASES, Origins
from iotrace.analysis.device.operators import RangeTree, operators_of
from iotrace.analysis.device.stream_waits import Queues, stream_waits_of
from iotrace.analysis.efficiency.launches import (
    IdleOrigins,
    PhaseTimes,
    collectives_of,
    launches_of,
    queue_of,
    runtime_calls_of,
)
from iotrace.analysis.efficiency.peaks import peaks_of_windows
from iotrace.analysis.intervals import Coverage, intersect, length, pieces, union
from iotrace.analysis.results import (
    Accelerator,
    DevicePeaks,
    Gap,
    IdleByModule,
    KernelCategory,
    OperatorShapes,
    StreamIdle,
)
from iotrace.sources.kineto.trace import Column, Floats

KERNEL_GAP_US = 30.0  # HTA's


class DataWaits(msgspec.Struct, frozen=True):
    """Raw data waits, disjoint and in order; where the agent recorded them, causes in ns and rows there."""

    starts_ns: Column
    ends_ns: Column
    causes: Sequence[dict[str, int]] = []
    rows: Sequence[int] = []


def waits_of(activity: Activity) -> DataWaits:
    """Find the data waits that the trace itself holds: torch's ranges around ``DataLoader.__next__``."""
    return DataWaits(*union(*activity.intervals(activity.data_waits)))


class _Totals(msgspec.Struct):
    """Sums over windows, in ns; `modules` and `streams` by (module, phase) and (device, stream)."""

    span: int = 0
    busy: int = 0
    compute: int = 0
    communication: int = 0
    memory: int = 0
    overlap: int = 0
    classes: Column = msgspec.field(default_factory=lambda: np.zeros(len(CLASSES), dtype=np.int64))
    causes: dict[str, float] | None = None
    modules: dict[tuple[str | None, str], Floats] = {}
    streams: dict[tuple[int, int], _Stream] = {}
    windows: list[Window] = []
    queues: list[Queues] = []
    origins: IdleOrigins = msgspec.field(default_factory=IdleOrigins)
    phases: PhaseTimes = msgspec.field(default_factory=PhaseTimes)
    gaps: list[Gap] = []
    others: dict[str, int] = {}
    account: Account = msgspec.field(default_factory=Account)

    def add(self, activity: Activity, waits: DataWaits, kernel_gap_ns: int, origin: Origin | None) -> None:
        """Add one trace."""
        events = activity.trace.events
        rows = np.flatnonzero(activity.device)
        waiting = Coverage(waits.starts_ns, waits.ends_ns)
        busy = activity.busy()
        compute = union(*activity.intervals(activity.compute_kernels))
        communication = union(*activity.intervals(activity.collective_kernels))
        # Also kernels that took no ns end gaps; they lie in no union.
        self.span += int(events.end_ns[rows].max() - events.start_ns[rows].min())
        self.busy += length(busy)
        self.compute += length(compute)
        self.communication += length(communication)
        self.memory += length(union(*activity.intervals(activity.memory_operations)))
        self.overlap += length(intersect(compute, communication))
        gaps = gaps_of(activity, rows)
        classes = classify(activity, gaps, waiting, kernel_gap_ns)
        self.classes += classes.sum(axis=0)
        if waits.causes:
            self.causes = self.causes or {}
            _add_causes(self.causes, waits, gaps, classes)
        window = Window.of(activity)
        _add_modules(self.modules, activity, gaps, window.origins)
        self.origins.add(window, gaps, classes)
        self.phases.add(window)
        self.gaps = largest([*self.gaps, *named_gaps(window, gaps, classes, len(self.windows), origin)])
        self.windows.append(window)
        self.queues.append(Queues(activity))
        self.account.add(self.queues[-1], gaps, waiting, kernel_gap_ns)
        for name, idle_ns in other_parts(self.queues[-1], gaps, classes).items():
            self.others[name] = self.others.get(name, 0) + idle_ns
        for own in self.queues[-1].by_stream():
            stream = int(events.device[own[0]]), int(events.stream[own[0]])
            total = self.streams.setdefault(stream, _Stream())
            total.events += len(own)
            total.busy += length(union(events.start_ns[own], events.end_ns[own]))
            classes = classify(activity, gaps_of(activity, own), waiting, kernel_gap_ns)
            total.classes += classes.sum(axis=0)


class _Stream(msgspec.Struct):
    events: int = 0
    busy: int = 0
    classes: Column = msgspec.field(default_factory=lambda: np.zeros(len(CLASSES), dtype=np.int64))


def accelerator_of(
    windows: Sequence[Activity],
    waits: Sequence[DataWaits] | None = None,
    kernel_gap_us: float = KERNEL_GAP_US,
    origin: Origin | None = None,
) -> Accelerator | None:
    """Sum up the accelerator's figures over a rank's traces; None where none holds device activity.

    `waits` are the raw data waits of each; without them, those that the trace itself holds. `origin` is the
    session whose timeline shows the gaps, without one it is each trace.
    """
    totals = _Totals()
    for number, activity in enumerate(windows):
        if activity.device.any():
            own = waits[number] if waits is not None else waits_of(activity)
            totals.add(activity, own, round(kernel_gap_us * 1000), origin)
    if not totals.busy:
        return None
    queue_mean, queue_max = queue_of(totals.windows)
    peaks = peaks_of_windows(totals.windows)
    shapes, categories = _shapes(totals.windows, peaks, categories_of(totals.windows))
    sm_efficiency_pct, occupancy_pct = filling_of(totals.windows, totals.span)
    return Accelerator(
        span_us=totals.span / 1e3,
        busy_us=totals.busy / 1e3,
        idle_us=(totals.span - totals.busy) / 1e3,
        compute_us=totals.compute / 1e3,
        non_compute_us=(totals.busy - totals.compute) / 1e3,
        comm_us=totals.communication / 1e3,
        memory_us=totals.memory / 1e3,
        comm_comp_overlap_us=totals.overlap / 1e3,
        comm_comp_overlap_pct=_percent(totals.overlap, totals.communication),
        overlap_of_compute_pct=_percent(totals.overlap, totals.compute),
        overlap_of_span_pct=_percent(totals.overlap, totals.span),
        kernel_gap_us=kernel_gap_us,
        idle_by_class_us=_by_class(totals.classes),
        data_wait_by_cause_us=totals.causes,
        idle_by_module=sorted(
            (
                IdleByModule(
                    module=module,
                    phase=phase,
                    idle_us=idle_us,
                    comm_us=communication_us,
                    device_us=device_us,
                )
                for (module, phase), sums in totals.modules.items()
                for idle_us, communication_us, device_us in [(sums / 1e3).tolist()]
            ),
            key=lambda one: (-one.idle_us, -one.comm_us, -one.device_us),
        ),
        streams=[
            StreamIdle(
                device=None if device < 0 else device,
                stream=None if stream < 0 else stream,
                events=total.events,
                busy_us=total.busy / 1e3,
                idle_by_class_us=_by_class(total.classes),
            )
            for (device, stream), total in sorted(totals.streams.items())
        ],
        idle_other_us={name: idle_ns / 1e3 for name, idle_ns in totals.others.items()},
        idle_by_origin=totals.origins.rows(),
        without_launch=without_launch(totals.windows),
        launches=launches_of(totals.windows),
        launch_queue_mean=queue_mean,
        launch_queue_max=queue_max,
        sm_efficiency_pct=sm_efficiency_pct,
        occupancy_pct=occupancy_pct,
        peaks=peaks,
        shapes=shapes,
        kernels=kernels_of(totals.windows),
        operators=operators_of([window.tree for window in totals.windows]),
        ranges=operators_of([RangeTree(window.activity) for window in totals.windows]),
        collectives=collectives_of([window.activity for window in totals.windows]),
        memory_operations=memory_operations_of(totals.windows),
        gaps=totals.gaps,
        stream_waits=stream_waits_of(totals.queues),
        critical_path=critical_path_of(totals.queues),
        by_phase=totals.phases.rows(),
        idle_time=totals.account.result(),
        runtime_calls=runtime_calls_of([window.activity for window in totals.windows]),
        categories=categories,
    )


def _shapes(
    windows: Sequence[Window], peaks: DevicePeaks | None, categories: list[KernelCategory]
) -> tuple[list[OperatorShapes], list[KernelCategory]]:
    """Make the rows of operators by their inputs, and add what these tell of the categories."""
    if not any(window.details.has_shapes for window in windows):
        return [], categories
    from iotrace.analysis.efficiency.shapes import Shapes

    shapes = Shapes(windows, peaks)
    return shapes.rows(), shapes.rated(categories)


def _percent(part_ns: int, whole_ns: int) -> float | None:
    return 100 * part_ns / whole_ns if whole_ns else None


def _by_class(classes: Column) -> dict[str, float]:
    return dict(zip(CLASSES, (classes / 1e3).tolist(), strict=True))


def _add_causes(totals: dict[str, float], waits: DataWaits, gaps: Gaps, classes: Column) -> None:
    """Add the class data_wait in us by the causes of the waits: a part of a wait has those of the whole."""
    waited = classes[:, CLASSES.index("data_wait")] > 0
    parts = pieces(gaps.start_ns[waited], gaps.end_ns[waited], waits.starts_ns, waits.ends_ns)
    for part_ns, number in zip((parts[1] - parts[0]).tolist(), parts[3].tolist(), strict=True):
        causes = waits.causes[number]
        whole = sum(causes.values())
        for cause, cost_ns in causes.items():
            totals[cause] = totals.get(cause, 0.0) + (part_ns * cost_ns / whole / 1e3 if whole else 0.0)


def _add_modules(
    totals: dict[tuple[str | None, str], Floats], activity: Activity, gaps: Gaps, origins: Origins
) -> None:
    """Add idle time by the origin of what ended it, what the device did by that of its launch."""
    rows, collectives = np.flatnonzero(activity.device), np.flatnonzero(activity.collective_kernels)
    keys = (origins.module + 1) * len(PHASES) + origins.phase
    size = (len(origins.modules) + 1) * len(PHASES)

    def total(rows: Column, weights: Column) -> Floats:
        # A float64 holds 104 days in ns.
        return np.bincount(keys[rows], weights=weights, minlength=size).astype(np.float64)

    idle = total(gaps.ended_by, gaps.end_ns - gaps.start_ns)
    communication = total(collectives, activity.trace.events.duration_ns[collectives])
    device = total(rows, activity.trace.events.duration_ns[rows])
    table = np.stack((idle, communication, device), axis=1)
    for key in np.flatnonzero((idle > 0) | (device > 0)).tolist():
        module, phase = divmod(key, len(PHASES))
        name = origins.modules[module - 1] if module else None, PHASES[phase]
        totals[name] = totals[name] + table[key] if name in totals else table[key]
