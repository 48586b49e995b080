"""What the accelerator did in the traced window, in us."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart


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
    """Totals over the traced window, in us. `idle_by_class_us` and `idle_by_module` each sum to `idle_us`."""

    span_us: float
    busy_us: float
    idle_us: float
    compute_us: float
    non_compute_us: float
    comm_us: float
    memory_us: float
    comm_comp_overlap_us: float
    comm_comp_overlap_pct: float | None = None
    overlap_of_compute_pct: float | None = None
    overlap_of_span_pct: float | None = None
    kernel_gap_us: float
    idle_by_class_us: dict[str, float]
    data_wait_by_cause_us: dict[str, float] | None = None
    idle_by_module: list[IdleByModule]
    idle_by_origin: list[IdleByOrigin]
    streams: list[StreamIdle]
    idle_other_us: dict[str, float]
    without_launch: int
    launches: list[Launches]
    launch_queue_mean: float | None = None
    launch_queue_max: int | None = None
    sm_efficiency_pct: float | None = None
    occupancy_pct: float | None = None
    peaks: DevicePeaks | None = None
    shapes: list[OperatorShapes]
    kernels: list[Kernel]
    operators: list[Operator]
    collectives: list[CollectiveKind]
    memory_operations: list[MemoryOperation]
    gaps: list[Gap]
    stream_waits: list[StreamWait] = msgspec.field(default_factory=list)
    critical_path: CriticalPath | None = None
    by_phase: list[DevicePhase] | None = None
