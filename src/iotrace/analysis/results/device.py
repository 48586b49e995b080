"""What the accelerator did in the traced window, in us."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.figure import figure


class IdleByModule(ReportPart, frozen=True, kw_only=True):
    """Idle time that kernels of a module and phase ended; what the device did that was launched there.

    `device_us` sums what each took, communication (`comm_us`) among it.
    """

    module: str | None = None
    phase: str
    idle_us: float
    comm_us: float
    device_us: float


class IdleByOrigin(ReportPart, frozen=True, kw_only=True):
    """Idle time that kernels of a module ended; without a module of an operator, without one of a name.

    `kind` says which: ``module``, ``operator`` or ``kernel``.
    """

    kind: str
    name: str
    phase: str
    gaps: int
    idle_us: float
    idle_by_class_us: dict[str, float]


class Launches(ReportPart, frozen=True, kw_only=True):
    """All calls of a name that launched: what each cost the host, how long until the device began with it.

    `shorter_than_call`: what they launched took the device less than the call took the host.
    """

    name: str
    calls: int
    host_us: float
    host_median_us: float
    delay_median_us: float
    delay_p95_us: float
    device_median_us: float
    shorter_than_call: int


class StreamIdle(ReportPart, frozen=True, kw_only=True):
    """A stream's own gaps, whatever other streams did meanwhile."""

    device: int | None = None
    stream: int | None = None
    events: int
    busy_us: float
    idle_by_class_us: dict[str, float]


class Kernel(ReportPart, frozen=True, kw_only=True):
    """All calls of a kernel; `op` and `module` launched most of its time.

    `blocks_per_sm` and `occupancy_pct` are means over its time, `tensor_cores` what its name tells.
    """

    name: str
    calls: int
    total_us: float
    mean_us: float
    max_us: float
    is_collective: bool
    op: str | None = None
    module: str | None = None
    blocks_per_sm: float | None = None
    occupancy_pct: float | None = None
    tensor_cores: bool | None = None


class Operator(ReportPart, frozen=True, kw_only=True):
    """All calls of an operator. Self is without the operators inside; device is what it, or they, launched.

    A call inside one of the same name is part of that in the totals. Without a device its times are null.
    """

    name: str
    calls: int
    host_total_us: float
    host_self_us: float
    device_total_us: float | None = None
    device_self_us: float | None = None


class OperatorShapes(ReportPart, frozen=True, kw_only=True):
    """All calls of an operator with such inputs; a call within one of its name is a part of that.

    `tflop_per_s` is over the device's time. `roofline_pct`: of the peak, or of what `bound` memory allows.
    """

    name: str
    shapes: list[list[int]]
    types: list[str]
    calls: int
    host_total_us: float
    device_total_us: float
    flop_per_call: int | None = None
    tflop_per_s: float | None = None
    peak_tflop_per_s: float | None = None
    bound: str | None = None
    roofline_pct: float | None = None


class DevicePeaks(ReportPart, frozen=True, kw_only=True):
    """What a device does at most, dense, and where that stands."""

    device: str
    memory_gb_per_s: float
    tflop_per_s: dict[str, float]
    source: str
    looked_up: str


class CollectiveKind(ReportPart, frozen=True, kw_only=True):
    """Communication of a kind in a process group; its bandwidths include the waits for late ranks."""

    kind: str
    group: str | None = None
    group_size: int | None = None
    calls: int
    bytes: int | None = None
    total_us: float
    exposed_us: float
    algorithm_gb_per_s: float | None = None
    bus_gb_per_s: float | None = None


class MemoryOperation(ReportPart, frozen=True, kw_only=True):
    """All copies of a kind, or sets; `overlapped_us` ran while a kernel computed."""

    name: str
    direction: str | None = None
    pinned: bool | None = None
    calls: int
    bytes: int | None = None
    total_us: float
    gb_per_s: float | None = None
    overlapped_us: float


class Gap(ReportPart, frozen=True, kw_only=True):
    """A time in which the device did nothing; `start_us` counts from the first event of the trace.

    `op` and `module` launched `after`, which ended it; `source` is the innermost Python frame there that is
    neither torch's nor Python's. `class` is the one with most of it. `at_s` lies in its middle, in seconds
    since the session or the trace began: `command` shows it there.
    """

    window: int
    start_us: float
    us: float
    before: str
    after: str
    op: str | None = None
    module: str | None = None
    kind: str = msgspec.field(name="class")
    at_s: float
    command: str
    source: str | None = None


class SlowStep(ReportPart, frozen=True, kw_only=True):
    """A step that took long; `is_first`: so did all before it. `parts_ms` took longer than usual, by name.

    `host_ms`: functions, operators and calls, without those inside, that took most of it.
    Of a trace without steps `step` and what is over the usual are null, the parts are all that it did.
    """

    step: int | None = None
    is_first: bool
    ms: float
    over_ms: float | None = None
    parts_ms: dict[str, float]
    unnamed_ms: float | None = None
    host_ms: dict[str, float]


class StreamWait(ReportPart, frozen=True, kw_only=True):
    """Waits of `stream` until `kernel_before` ended on stream `waits_for`, before `kernel` could begin.

    `measured`: the trace has the synchronisation; else it is inferred from the calls and the times.
    """

    device: int | None = None
    stream: int
    waits_for: int
    calls: int
    waited_us: float
    kernel: str
    kernel_before: str
    measured: bool


class CriticalPart(ReportPart, frozen=True, kw_only=True):
    """What has a part of the critical path, by `kind` and `name`; `pct` of all of it."""

    kind: str
    name: str
    calls: int
    us: float
    pct: float


class CriticalPath(ReportPart, frozen=True, kw_only=True):
    """Sums over the critical paths of `steps` of `of_steps` steps: `by_kind_us` sums to `span_us`.

    `parts` has the 30 costliest. The counts are of waits between streams, over the whole trace.
    """

    steps: int
    of_steps: int
    span_us: float
    by_kind_us: dict[str, float]
    parts: list[CriticalPart]
    stream_waits_measured: int
    stream_waits_inferred: int


class DevicePhase(ReportPart, frozen=True, kw_only=True):
    """A phase's share of the device's busy time; None where no range tells of the phase.

    `comm_us` is the union of the collectives launched there, whatever ran beside them; `comm_alone_us` the
    part of `busy_us` in which they ran and no kernel computed.
    """

    phase: str
    busy_us: float | None = None
    comm_us: float | None = None
    comm_alone_us: float | None = None


class Accelerator(ReportPart, frozen=True, kw_only=True):
    """What the device did in the traced windows, all together."""

    span_us: Annotated[float, figure("from the first start to the last end of device activity: kernels and memory operations")]
    busy_us: Annotated[float, figure("union of device activity")]
    idle_us: Annotated[float, figure("`span_us` - `busy_us`")]
    compute_us: Annotated[float, figure("union of the kernels that are no collectives")]
    non_compute_us: Annotated[float, figure("`busy_us` - `compute_us`")]
    comm_us: Annotated[float, figure("union of the collectives' kernels")]
    memory_us: Annotated[float, figure("union of the memory operations")]
    comm_comp_overlap_us: Annotated[float, figure("intersection of `compute_us` and `comm_us`")]
    comm_comp_overlap_pct: Annotated[float | None, figure("100 x overlap / `comm_us`", null="no communication")] = None
    overlap_of_compute_pct: Annotated[float | None, figure("the same of `compute_us`", null="no computation")] = None
    overlap_of_span_pct: Annotated[float | None, figure("the same of `span_us`", null="never")] = None
    kernel_gap_us: Annotated[float, figure("the bound of `kernel_wait`: `--kernel-gap-us`, by default 30")]
    idle_by_class_us: Annotated[dict[str, float], figure("the idle time by class; sums to `idle_us`")]
    data_wait_by_cause_us: Annotated[dict[str, float] | None, figure("the class `data_wait`, by the causes of the waits", null="a bare trace")] = None
    idle_by_module: Annotated[list[IdleByModule], figure("the idle time by `module` and `phase` of what ended it; sums to `idle_us`")]
    idle_by_origin: Annotated[list[IdleByOrigin], figure("the idle time by what ended it; sums to `idle_us`")]
    streams: Annotated[list[StreamIdle], figure("per stream its number of `events`, `busy_us`, and its own gaps by class")]
    idle_other_us: Annotated[dict[str, float], figure("the class `other` by how what ended the gap was launched; sums to that class")]
    without_launch: Annotated[int, figure("events of the device whose launch the trace does not hold: most were launched before it began")]
    launches: Annotated[list[Launches], figure("calls that launched, by name")]
    launch_queue_mean: Annotated[float | None, figure("how many were launched and had not begun", null="no launch is known")] = None
    launch_queue_max: Annotated[int | None, figure("the most of these", null="no launch is known")] = None
    sm_efficiency_pct: Annotated[float | None, figure("of the multiprocessors, how many had a block", null="a kernel does not tell its blocks")] = None
    occupancy_pct: Annotated[
        float | None, figure("Kineto's `est. achieved occupancy %`, mean over the kernels", null="unknown for a tenth of the kernels' time or more")
    ] = None
    peaks: Annotated[DevicePeaks | None, figure("what the device does at most", null="a device not in the table")] = None
    shapes: Annotated[list[OperatorShapes], figure("with shapes recorded, the 100 costliest operators by name and inputs, and what multiplies")]
    kernels: Annotated[list[Kernel], figure("kernels by name")]
    operators: Annotated[list[Operator], figure("operators by name")]
    collectives: Annotated[list[CollectiveKind], figure("kernels that communicate, by `kind` and `group`")]
    memory_operations: Annotated[list[MemoryOperation], figure("copies and sets by name")]
    gaps: Annotated[list[Gap], figure("the ten longest idle times")]
    stream_waits: Annotated[list[StreamWait], figure("waits of a `stream` of a `device` for another one")] = msgspec.field(default_factory=list)
    critical_path: Annotated[CriticalPath | None, figure("what the length of the steps was made of, host and device", null="nothing was launched")] = None
    by_phase: Annotated[list[DevicePhase] | None, figure("`busy_us` by phase", null="nothing was launched in a forward, backward or optimizer")] = None
