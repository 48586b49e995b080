"""What the accelerator did in the traced window, in us."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure


class IdleByModule(ReportPart, frozen=True, kw_only=True):
    """Idle time that kernels of a module and phase ended; what the device did that was launched there."""

    module: Annotated[str | None, figure("the innermost module", null="no launch is known, or it lies in none", said="module", place=5, absent="no module")] = (
        None
    )
    phase: Annotated[str, figure("the phase of the step", said="phase", place=4)]
    idle_us: Annotated[float, figure("idle time that its kernels ended", said="idle ms", place=1)]
    comm_us: Annotated[float, figure("of `device_us`, the collectives' part", said="comm ms", place=3)]
    device_us: Annotated[float, figure("what the device did that was launched there, each with all of its time", said="device ms", place=2)]


class IdleByOrigin(ReportPart, frozen=True, kw_only=True):
    """Idle time by what ended it: a module, without one an operator, without one a name."""

    kind: Annotated[str, figure("`module`; where none is known `operator`; without one `kernel`", said="ended by", place=3)]
    name: Annotated[str, figure("its name", said="name", place=5)]
    phase: Annotated[str, figure("the phase of the step", said="phase", place=4)]
    gaps: Annotated[int, figure("how many times the device was idle")]
    idle_us: Annotated[float, figure("for how long, all together", said="idle ms", place=1)]
    idle_by_class_us: Annotated[dict[str, float], figure("the same by class", said="{}", place=2)]


class Launches(ReportPart, frozen=True, kw_only=True):
    """All calls of a name that launched."""

    name: Annotated[str, figure("the call", said="call", place=8)]
    calls: Annotated[int, figure("how often", said="calls", place=2)]
    host_us: Annotated[float, figure("what the calls cost the host, all together", said="host ms", place=1)]
    host_median_us: Annotated[float, figure("the median of that", said="median us", place=3)]
    delay_median_us: Annotated[float, figure("from the call's start to that on the device (of a graph its first kernel)", said="delay us", place=4)]
    delay_p95_us: Annotated[float, figure("the same, the 95th percentile", said="p95", place=5)]
    device_median_us: Annotated[float, figure("what was launched took the device, the median", said="runs us", place=6)]
    shorter_than_call: Annotated[int, figure("calls that took the host longer than that took the device", said="shorter", place=7)]


class StreamIdle(ReportPart, frozen=True, kw_only=True):
    """A stream's own gaps."""

    device: Annotated[int | None, figure("its device", said="device")] = None
    stream: Annotated[int | None, figure("its number", said="stream")] = None
    events: Annotated[int, figure("kernels and memory operations on it", said="events")]
    busy_us: Annotated[float, figure("their union", said="busy ms")]
    idle_by_class_us: Annotated[dict[str, float], figure("its own gaps, whatever other streams did meanwhile", said="{}")]


class Kernel(ReportPart, frozen=True, kw_only=True):
    """All calls of a kernel."""

    name: Annotated[str, figure("its name", said="kernel", place=7)]
    calls: Annotated[int, figure("how often", said="calls", place=2)]
    total_us: Annotated[float, figure("all together", said="ms", place=1)]
    mean_us: Annotated[float, figure("the mean")]
    max_us: Annotated[float, figure("the longest")]
    median_us: Annotated[float | None, figure("the median", null="never", said="median us", place=3, absent="-")] = None
    min_us: Annotated[float | None, figure("the shortest", null="never")] = None
    deviation_us: Annotated[float | None, figure("the standard deviation", null="never")] = None
    is_collective: Annotated[bool, figure("whether it communicates")]
    op: Annotated[
        str | None, figure("the operator that launched most of its time", null="no launch is known, or it lies in none", said="launched by", place=6)
    ] = None
    module: Annotated[str | None, figure("the module that did", null="no launch is known, or it lies in none")] = None
    blocks_per_sm: Annotated[float | None, figure("mean over its time", null="not told", said="blocks/SM", place=4, absent="-")] = None
    occupancy_pct: Annotated[float | None, figure("mean over its time", null="not told", said="occup. %", place=5, absent="-")] = None
    tensor_cores: Annotated[bool | None, figure("whether its name tells of them", null="not told")] = None


class Operator(ReportPart, frozen=True, kw_only=True):
    """All calls of an operator. Self is without the operators inside."""

    name: Annotated[str, figure("its name", said="operator", place=6)]
    calls: Annotated[int, figure("how often", said="calls", place=5)]
    host_total_us: Annotated[float, figure("on the host; a call inside one of its name is part of that", said="host", place=2)]
    host_self_us: Annotated[float, figure("without the operators directly inside, on the same thread", said="host self", place=1)]
    device_total_us: Annotated[
        float | None, figure("what its launches took, with those of the operators inside", null="there is no device", said="device", place=4, absent="-")
    ] = None
    device_self_us: Annotated[float | None, figure("what its own launches took", null="there is no device", said="device self", place=3, absent="-")] = None


class OperatorShapes(ReportPart, frozen=True, kw_only=True):
    """All calls of an operator with such inputs."""

    name: Annotated[str, figure("the operator", said="operator", place=7)]
    shapes: Annotated[list[list[int]], figure("its inputs' shapes", said="input shapes", place=8)]
    types: Annotated[list[str], figure("and types")]
    calls: Annotated[int, figure("how often; a call within one of its name is a part of that", said="calls", place=2)]
    host_total_us: Annotated[float, figure("on the host")]
    device_total_us: Annotated[float, figure("on the device", null="there is none", said="ms", place=1)]
    device_self_us: Annotated[float | None, figure("what its own launches took, without those of operators inside", null="never")] = None
    flop_per_call: Annotated[int | None, figure("by the operator's definition", null="not known of this operator")] = None
    tflop_per_s: Annotated[float | None, figure("over the device's time", null="as above", said="TFLOP/s", place=3, absent="-")] = None
    peak_tflop_per_s: Annotated[float | None, figure("of the device, for the type", null="an unknown device; kernels with and without tensor cores")] = None
    bytes_per_call: Annotated[int | None, figure("that it moves at least: each operand once", null="not known of this operator, or of these types")] = None
    gb_per_s: Annotated[float | None, figure("these over the device's time", null="as above", said="GB/s", place=4, absent="-")] = None
    bound: Annotated[
        str | None, figure("`compute` or `memory`, the lower at these shapes (each operand moved once)", null="as above", said="bound by", place=6, absent="-")
    ] = None
    roofline_pct: Annotated[
        float | None,
        figure(
            "what it reaches of that",
            null="as above; attention with an own or unknown mask; more than memory gives",
            said="roof %",
            place=5,
            absent="-",
        ),
    ] = None


class DevicePeaks(ReportPart, frozen=True, kw_only=True):
    """What a device does at most, dense, and where that stands."""

    device: Annotated[str, figure("its name")]
    memory_gb_per_s: Annotated[float, figure("of its memory")]
    tflop_per_s: Annotated[dict[str, float], figure("dense, by type")]
    source: Annotated[str, figure("the data sheet")]
    looked_up: Annotated[str, figure("when that was looked up")]


class CollectiveKind(ReportPart, frozen=True, kw_only=True):
    """Communication of a kind in a process group."""

    kind: Annotated[str, figure("what it does", said="kind", place=9)]
    group: Annotated[str | None, figure("the process group", null="the trace does not state it", said="group", place=8)] = None
    group_size: Annotated[int | None, figure("its ranks", null="the trace does not state it", said="ranks", place=7)] = None
    calls: Annotated[int, figure("how often", said="calls", place=3)]
    bytes: Annotated[int | None, figure("what it moved", null="the trace does not state it", said="bytes", place=4)] = None
    total_us: Annotated[float, figure("all together, with the waits for late ranks", said="ms", place=1)]
    exposed_us: Annotated[float, figure("while no kernel computed", said="exposed ms", place=2)]
    algorithm_gb_per_s: Annotated[float | None, figure("bytes / time", null="the trace does not state it", said="alg. GB/s", place=5)] = None
    bus_gb_per_s: Annotated[
        float | None, figure("that × nccl-tests' factor for the group's size", null="the trace does not state it", said="bus GB/s", place=6)
    ] = None


class MemoryOperation(ReportPart, frozen=True, kw_only=True):
    """All copies of a kind, or sets."""

    name: Annotated[str, figure("what was copied from where to where, or set", said="operation", place=6)]
    direction: Annotated[str | None, figure("from, to", null="the trace does not state it")] = None
    pinned: Annotated[bool | None, figure("whether the host's memory was", null="the trace does not state it")] = None
    calls: Annotated[int, figure("how often", said="calls", place=3)]
    bytes: Annotated[int | None, figure("what was moved", null="the trace does not state it", said="bytes", place=4)] = None
    total_us: Annotated[float, figure("all together", said="ms", place=1)]
    gb_per_s: Annotated[float | None, figure("bytes / time", null="the trace does not state it", said="GB/s", place=5)] = None
    overlapped_us: Annotated[float, figure("while a kernel computed", said="overlapped ms", place=2)]


class Gap(ReportPart, frozen=True, kw_only=True):
    """A time in which the device did nothing."""

    window: Annotated[int, figure("which trace of the rank")]
    start_us: Annotated[float, figure("since its first event", said="at ms", place=1)]
    us: Annotated[float, figure("its length", said="idle ms", place=2)]
    before: Annotated[str, figure("the kernel before")]
    after: Annotated[str, figure("the kernel that ended it", said="kernel after", place=6)]
    op: Annotated[str | None, figure("the operator that launched that", null="no launch is known, or it lies in none", said="ended by", place=4)] = None
    module: Annotated[str | None, figure("the module that did", null="no launch is known, or it lies in none", said="module", place=5, absent="no module")] = (
        None
    )
    kind: Annotated[str, figure("the class with most of it", said="class", place=3)] = msgspec.field(name="class")
    at_s: Annotated[float, figure("its middle, in seconds since the session or the trace began")]
    command: Annotated[str, figure("shows it in the timeline")]
    source: Annotated[str | None, figure("with stacks, the innermost Python frame around the launch, neither torch's nor Python's", null="none is known")] = (
        None
    )


class IdlePart(ReportPart, frozen=True, kw_only=True):
    """Idle time of one cause, and where on the host most of it lies."""

    cause: Annotated[str, figure("what the device waited for")]
    us: Annotated[float, figure("all together")]
    gaps: Annotated[int, figure("how many times the device was idle for it")]
    where: Annotated[str | None, figure("the program's frame that holds most of it, without stacks an operator or range", null="none holds most")] = None
    where_us: Annotated[float | None, figure("how much of it; behind waits for the device, of these waits", null="none holds most")] = None
    first_use_us: Annotated[float, figure("how much of it lies in gaps that end as a kernel runs for the first time in the trace")] = 0.0
    call: Annotated[str | None, figure("the call of the runtime that holds most of it", null="none holds most")] = None
    call_us: Annotated[float | None, figure("how much of it; behind waits for the device, of these waits", null="none holds most")] = None

    @property
    def is_first_use(self) -> bool:
        """Whether nearly all of it comes before kernels that ran for the first time: it may come once."""
        return self.us > 0 and self.first_use_us >= 0.9 * self.us


class IdleTime(ReportPart, frozen=True, kw_only=True):
    """One account of the idle time: over the steps, without steps from the host's first event."""

    span_us: Annotated[float, figure("from the first step, or the host's first event, to the end of the last step and of the device's work")]
    idle_us: Annotated[float, figure("of it the device did nothing")]
    parts: Annotated[list[IdlePart], figure("the same by `cause`, the costliest first; sums to `idle_us`")]


class RuntimeCall(ReportPart, frozen=True, kw_only=True):
    """All calls of the runtime or the driver of a name."""

    name: Annotated[str, figure("the call")]
    calls: Annotated[int, figure("how often")]
    total_us: Annotated[float, figure("all together, on the host")]
    median_us: Annotated[float, figure("the median")]
    max_us: Annotated[float, figure("the longest")]
    waits: Annotated[bool, figure("whether it returns when the device has done something: it synchronises, or copies and blocks")]
    called_by: Annotated[str | None, figure("the operator around most of its time", null="none is around most of it")] = None


class KernelCategory(ReportPart, frozen=True, kw_only=True):
    """What the device did for operators of a kind."""

    category: Annotated[str, figure("`gemm`, `convolution`, `attention`, `norm`, `reduction`, `elementwise`, `index`, `copy`, `communication` or `other`")]
    calls: Annotated[int, figure("kernels and memory operations")]
    total_us: Annotated[float, figure("each with all of its time")]
    pct: Annotated[float, figure("of the time of all")]
    gb_per_s: Annotated[float | None, figure("bytes / time of its operators whose inputs tell the bytes", null="no shapes, or of none")] = None
    roofline_pct: Annotated[float | None, figure("of the device's memory bandwidth", null="as above; an unknown device; more than it gives")] = None
    known_pct: Annotated[float | None, figure("of its time, how much these operators have", null="as above")] = None


class SlowStep(ReportPart, frozen=True, kw_only=True):
    """A step that took long; of a trace without steps, all that it did."""

    step: Annotated[int | None, figure("its number", null="of a trace without steps")] = None
    is_first: Annotated[bool, figure("whether all before it were slow, too")]
    ms: Annotated[float, figure("its length")]
    over_ms: Annotated[float | None, figure("beyond the median of the later half", null="of a trace without steps")] = None
    parts_ms: Annotated[dict[str, float], figure("what it did longer than these, by name")]
    unnamed_ms: Annotated[float | None, figure("the rest of `over_ms`", null="of a trace without steps")] = None
    host_ms: Annotated[dict[str, float], figure("functions, operators and calls, without those inside, that took most of it")]


class StreamWait(ReportPart, frozen=True, kw_only=True):
    """Waits of a stream until a kernel on another one had ended."""

    device: Annotated[int | None, figure("its device", null="the trace does not state it")] = None
    stream: Annotated[int, figure("the stream that waited", said="stream", place=3)]
    waits_for: Annotated[int, figure("the other one", said="for", place=4)]
    calls: Annotated[int, figure("how often", said="calls", place=2)]
    waited_us: Annotated[float, figure("all together", said="ms", place=1)]
    kernel: Annotated[str, figure("what could begin", said="before this", place=7)]
    kernel_before: Annotated[str, figure("when this had ended", said="until this ended", place=6)]
    measured: Annotated[bool, figure("whether the trace has the synchronisation; else it is inferred from calls and times", said="known", place=5)]


class CriticalPart(ReportPart, frozen=True, kw_only=True):
    """What has a part of the critical path."""

    kind: Annotated[str, figure("what it is", said="kind", place=4)]
    name: Annotated[str, figure("its name", said="name", place=5)]
    calls: Annotated[int, figure("how often", said="calls", place=3)]
    us: Annotated[float, figure("all together", said="ms", place=1)]
    pct: Annotated[float, figure("of all of the path", said="%", place=2)]


class CriticalPath(ReportPart, frozen=True, kw_only=True):
    """Sums over the critical paths of steps."""

    steps: Annotated[int, figure("of how many steps")]
    of_steps: Annotated[int, figure("that there are")]
    span_us: Annotated[float, figure("their length")]
    by_kind_us: Annotated[dict[str, float], figure("the same by kind")]
    parts: Annotated[list[CriticalPart], figure("the 30 costliest")]
    stream_waits_measured: Annotated[int, figure("waits between streams that the trace has")]
    stream_waits_inferred: Annotated[int, figure("and those that were inferred")]


class DevicePhase(ReportPart, frozen=True, kw_only=True):
    """A phase's share of the device's busy time."""

    phase: Annotated[str, figure("`forward`, `backward`, `optimizer`, `loader` or `elsewhere`")]
    busy_us: Annotated[float | None, figure("they sum to the device's", null="no range tells of it: what it did is `elsewhere`")] = None
    comm_us: Annotated[float | None, figure("union of the collectives launched there", null="no range tells of it: what it did is `elsewhere`")] = None
    comm_alone_us: Annotated[
        float | None, figure("the part of `busy_us` in which they ran and no kernel computed", null="no range tells of it: what it did is `elsewhere`")
    ] = None


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
    idle_time: Annotated[IdleTime | None, figure("the idle time by cause, one account", null="never where a device is known")] = None
    runtime_calls: Annotated[list[RuntimeCall], figure("calls of the runtime and driver by name")] = msgspec.field(default_factory=list)
    categories: Annotated[list[KernelCategory], figure("the device's time by kind of operator")] = msgspec.field(default_factory=list)
    ranges: Annotated[list[Operator], figure("the same of ranges that the program named (`record_function`)")] = msgspec.field(default_factory=list)
