"""What a report says, as plain data: its JSON is the contract (docs/definitions.md has the meanings).

Times are means in ms: of ranks per measured step, of loaders per batch; ``total`` is a sum over the run.
None is unknown, never 0.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from iotrace.session.manifest import NotCaptured

SCHEMA_VERSION = 1


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a report: immutable, encoded with all fields."""


_Made = TypeVar("_Made", bound=ReportPart)


def unknown(kind: type[_Made], **known: Any) -> _Made:
    """Make a result of which nothing but `known` is known: every other field is None."""
    return kind(**{**dict.fromkeys(kind.__struct_fields__), **known})


class SessionInfo(ReportPart, frozen=True, kw_only=True):
    path: str
    argv: list[str]
    exit_code: int | None
    ended: bool
    complete: bool
    iotrace_version: str | None


class Excluded(ReportPart, frozen=True, kw_only=True):
    """Steps left out of the figures: the first, those awaiting a worker's first batch, those profiled."""

    first: int
    warmup: int
    profiled: int


class Steps(ReportPart, frozen=True, kw_only=True):
    """Measured steps; `begun` counts all that the loop began, `unknown_why` is why its data wait is null."""

    count: int
    begun: int | None
    unknown_why: str | None
    excluded: Excluded
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    per_second: float | None
    samples_per_second: float | None


class FileCost(ReportPart, frozen=True, kw_only=True):
    """A file's share of the data wait: `ms` in files, `transform_ms` behind reading this one alone."""

    path: str
    ms: float
    read_ms: float
    decode_ms: float
    transform_ms: float


class WorstBatch(ReportPart, frozen=True, kw_only=True):
    batch: int
    epoch: int
    wait_ms: float
    delay_ms: float | None
    worker: int | None
    pid: int | None
    cause: str
    files: list[str]


class LoaderWait(ReportPart, frozen=True, kw_only=True):
    """A loader's share of the data wait, as a mean per measured step."""

    loader: int
    raw_ms: float


class DataWait(ReportPart, frozen=True, kw_only=True):
    raw_ms: float | None
    exposed_ms: float | None
    exposed_source: str | None
    exposed_steps: int | None
    raw_wait_fraction: float | None
    stall_fraction: float | None
    verdict: str | None
    causes_ms: dict[str, float]
    by_loader: list[LoaderWait]
    too_few_workers: bool | None
    behind_ready_ms: float | None
    files: list[FileCost]
    worst_batches: list[WorstBatch]


class LoaderResult(ReportPart, frozen=True, kw_only=True):
    id: int
    kind: str
    primary: bool
    dataset: str
    wrapped: bool
    library: str | None
    workers: int
    batches: int
    phases: dict[str, int]
    raw_ms: float | None
    delay_ms: float | None
    production_ms: float | None
    queue_depth_mean: float | None
    epochs: int
    start_method: str | None
    first_batch_ms: float | None
    failures: list[str]


class RegionResult(ReportPart, frozen=True, kw_only=True):
    """A part of the program that its author named, over the whole run; `wait_ms` is per measured step."""

    name: str
    count: int
    ms_total: float
    cpu_ms_total: float
    wait_ms: float | None


class FileIo(ReportPart, frozen=True, kw_only=True):
    """A file's I/O over the run; what page faults of its `maps` read is in no figure."""

    path: str
    opens: int
    maps: int
    reads: int
    read_bytes: int | None
    read_ms_total: float | None
    writes: int
    write_bytes: int
    metadata_ms_total: float
    sequential_fraction: float | None
    reread_fraction: float | None
    by_worker: dict[str, int]


class ProcessCoverage(msgspec.Struct, frozen=True):
    pid: int
    role: str
    coverage: float | None
    traced_bytes: int | None
    kernel_bytes: int | None


class Io(ReportPart, frozen=True, kw_only=True):
    """`unseen_because` says what the kernel counts and the tracer does not; None where no data was read."""

    coverage: float | None
    unseen_because: str | None
    calls: int
    bytes: int
    ms_total: float
    files: list[FileIo]
    processes: list[ProcessCoverage]


class Gpu(ReportPart, frozen=True, kw_only=True):
    """An accelerator that the rank used (any, where that is unknown), or a MIG instance of one.

    Means and sums are over the measured time: what the measured steps cover.
    """

    index: int
    instance: int | None
    uuid: str
    name: str
    memory_total_bytes: int | None
    memory_bytes_peak: int | None
    rank_memory_bytes_peak: int | None
    util_pct_mean: float | None
    util_pct_peak: float | None
    util_source: str | None
    memory_util_pct_mean: float | None
    power_w_mean: float | None
    power_w_peak: float | None
    energy_j: float | None
    energy_source: str | None
    energy_j_per_step: float | None
    energy_j_per_sample: float | None
    sm_clock_mhz_mean: float | None
    memory_clock_mhz_mean: float | None
    temperature_c_max: float | None
    pcie_sent_bytes_per_s_mean: float | None
    pcie_received_bytes_per_s_mean: float | None
    throttled_fraction: float | None
    throttle_reasons: dict[str, float]


class ProcessUse(ReportPart, frozen=True, kw_only=True):
    """What a process of the rank used; `rss_peak_bytes` over its life, the rest over the measured time."""

    pid: int
    role: str
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    rss_growth_bytes: int | None
    major_faults: int | None
    io_calls: int | None
    storage_read_bytes: int | None
    storage_write_bytes: int | None


class HostUse(ReportPart, frozen=True, kw_only=True):
    """The rank's host over the measured time, of the CPUs that the job may use; shares are 0 to 1.

    `cpu_throttled_fraction` is a share of the CPU quota's periods. `pressure_fraction` is the kernel's (PSI):
    time in which some task waited for that resource.
    """

    cpu_busy_fraction: float | None
    cpu_saturated_fraction: float | None
    iowait_fraction: float | None
    cpu_throttled_fraction: float | None
    pressure_fraction: dict[str, float]
    cgroup_pressure_fraction: dict[str, float]
    memory_available_bytes_min: int | None
    sampler_cpu_pct_mean: float | None


class System(ReportPart, frozen=True, kw_only=True):
    """`cpu_pct_mean`: CPU of the rank's processes over the measured steps; 100 is one core."""

    gpus: list[Gpu]
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    cpus: int | None
    processes: list[ProcessUse]
    host: HostUse | None


class IdleByModule(ReportPart, frozen=True, kw_only=True):
    """Idle time that kernels of a module and phase ended; communication that was launched there."""

    module: str | None
    phase: str
    idle_us: float
    comm_us: float


class StreamIdle(ReportPart, frozen=True, kw_only=True):
    """A stream's own gaps, whatever other streams did meanwhile."""

    device: int | None
    stream: int | None
    events: int
    busy_us: float
    idle_by_class_us: dict[str, float]


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
    comm_comp_overlap_pct: float | None
    overlap_of_compute_pct: float | None
    overlap_of_span_pct: float | None
    kernel_gap_us: float
    idle_by_class_us: dict[str, float]
    data_wait_by_cause_us: dict[str, float] | None
    idle_by_module: list[IdleByModule]
    streams: list[StreamIdle]


class Overhead(ReportPart, frozen=True, kw_only=True):
    """What tracing itself may have cost: counts over the run, costs as measured on `measured_on` after it.

    The percentages are of the measured steps and of their batches' production; `estimated_pct_of_step` is
    an upper bound, as all but `least_pct_of_step` take every call to come after other work.
    """

    posix_calls: int | None
    spans: int
    processes: int
    posix_call_us: float | None
    next_posix_call_us: float | None
    span_us: float | None
    process_start_ms: float | None
    measured_on: str | None
    consumer_pct_of_step: float | None
    workers_pct_of_production: float | None
    estimated_pct_of_step: float | None
    least_pct_of_step: float | None


class RankReport(ReportPart, frozen=True, kw_only=True):
    rank: int
    host: str | None
    local_rank: int | None
    world_size: int | None
    incarnation: int
    steps: Steps
    data_wait: DataWait
    loaders: list[LoaderResult]
    regions: list[RegionResult]
    breakdown_ms: dict[str, float] | None
    breakdown_raw_ms: dict[str, float] | None
    breakdown_steps: int | None
    accelerator: Accelerator | None
    io: Io | None
    system: System
    overhead: Overhead | None


class RankBalance(ReportPart, frozen=True, kw_only=True):
    """Means per step of the traced window, in ms; the four parts sum to the step."""

    rank: int
    steps: int
    step_ms: float
    compute_ms: float
    communication_wait_ms: float
    data_wait_ms: float
    other_ms: float


class Collectives(ReportPart, frozen=True, kw_only=True):
    """Collectives that could be matched between ranks; skew is the longest wait of a rank in one."""

    matched: int
    unmatched: int
    skew_ms_mean: float | None
    skew_ms_max: float | None


class Straggler(ReportPart, frozen=True, kw_only=True):
    """What a rank costs the others: `waited_for_ms` is a total over them and the window.

    `by_data_pct` is the share of its lateness that its own data waits explain.
    """

    rank: int
    last_to_arrive: int
    waited_for_ms: float
    impact_pct: float | None
    severity: str | None
    by_data_pct: float | None


class LateCollective(ReportPart, frozen=True, kw_only=True):
    name: str
    elements: int | None
    step: int | None
    last_rank: int
    skew_ms: float
    data_wait_ms: float
    late_by_data_ms: float


class Imbalance(ReportPart, frozen=True, kw_only=True):
    """Across ranks. `spread` is (max - mean) / mean over the ranks."""

    ranks_seen: int
    world_size: int | None
    ranks: list[RankBalance]
    spread: dict[str, float | None]
    collectives: Collectives
    stragglers: list[Straggler]
    worst: list[LateCollective]


class Recommendation(ReportPart, frozen=True, kw_only=True):
    id: str
    severity: str
    text: str
    evidence: dict[str, float]
    gain_ms_per_step: float | None
    rank: int | None = None


class ClockSet(ReportPart, frozen=True, kw_only=True):
    """A host's clock was set by `by_ns` during the run, just after `at_ns`; undone."""

    at_ns: int
    by_ns: int


class ClockInfo(ReportPart, frozen=True, kw_only=True):
    """`kind` is ``exact``, or ``assumed`` where another machine's clock was not compared (bound unknown),
    ``none`` where times have no date."""

    source: str
    host: str | None
    kind: str
    offset_ns: int
    bound_ns: int | None
    set: list[ClockSet]


class ProcessInfo(ReportPart, frozen=True, kw_only=True):
    """A Python process of the job; `role` is as ``Session.role_of`` gives it."""

    pid: int
    ppid: int
    host: str
    role: str
    rank: int | None
    local_rank: int | None
    incarnation: int
    start_method: str | None
    python: str


class Report(ReportPart, frozen=True, kw_only=True):
    schema_version: int
    session: SessionInfo
    ranks: list[RankReport]
    processes: list[ProcessInfo]
    imbalance: Imbalance | None
    recommendations: list[Recommendation]
    not_captured: list[NotCaptured]
    clocks: list[ClockInfo]
