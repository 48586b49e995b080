"""The machine: I/O by file, processes, host, GPUs, and what tracing cost."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart


class ReadPattern(ReportPart, frozen=True, kw_only=True):
    """How read calls of a file, group or mount went over the run; slow or fast, never "cached".

    Shares are 0 to 1: of calls that returned less than 64 KiB, of those that begin elsewhere than where the
    process's last read of the file ended, of bytes that were read before. `bytes_per_s`: over the time in
    which a read ran; `reader_bytes_per_s`: what one reader got. Metadata: open, close, stat, seek and so on.
    """

    reads: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    bytes_per_s: float | None
    reader_bytes_per_s: float | None
    small_fraction: float | None
    random_fraction: float | None
    reread_fraction: float | None
    metadata_calls: int
    metadata_calls_per_sample: float | None


class MountIo(ReportPart, frozen=True, kw_only=True):
    """What the rank did on a mounted file system, found by the files' paths; links are not followed.

    `plain_bytes_per_s`: what ``iotrace doctor --storage`` found a plain sequential reader to get from it;
    `plain_cold`: whether that came from storage, as far as the kernel says.
    """

    point: str
    type: str
    files: int
    read_bytes: int | None
    pattern: ReadPattern
    plain_bytes_per_s: float | None = None
    plain_cold: bool | None = None


class DeviceReads(ReportPart, frozen=True, kw_only=True):
    """What a process had read from storage, by the kernel's account, in parts of the run.

    `read_bytes[i]` lies between `at_seconds[i]` and `at_seconds[i + 1]`, counted from the first account of
    the rank's processes.
    """

    pid: int
    role: str
    total_bytes: int
    at_seconds: list[float]
    read_bytes: list[int]


class FileIo(ReportPart, frozen=True, kw_only=True):
    """A file's I/O over the run; what page faults of its `maps` read is in no figure.

    `kind` and `members` are those of its `group`, which is None of files that are no data.
    """

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
    kind: str = "file"
    members: int | None = None
    group: str | None = None
    pattern: ReadPattern | None = None


class Chunks(ReportPart, frozen=True, kw_only=True):
    """What was read of a store of chunks over the run: `read` of `of` chunks, `times_read` in all.

    Each time it is read, a chunk is decoded whole: `decoded_bytes`, of which `used_bytes` were asked for.
    Dates are those of the chunks that were read, of a dataset that says them.
    """

    read: int
    of: int | None
    times_read: int
    decoded_bytes: int | None
    used_bytes: int | None
    amplification: float | None
    first_date: str | None
    last_date: str | None
    variables: list[str]


class ChunkedArray(ReportPart, frozen=True, kw_only=True):
    """An array in chunks and what was asked of it; `access` is the shape that most accesses had.

    A chunk is decoded whole: `decoded_at_most_bytes` where every touched chunk was decoded, `.._at_least_..`
    where a cache kept as many as calls do not contradict. With `suggested_chunk` accesses of this shape would
    decode `predicted_bytes` at most; `command` writes such a copy. Both are null or empty where none helps.
    """

    path: str
    dataset: str
    shape: list[int]
    chunk: list[int]
    chunk_bytes: int
    access: list[int] | None
    accesses: int
    chunks_touched: int
    used_bytes: int
    decoded_at_least_bytes: int
    decoded_at_most_bytes: int
    suggested_chunk: list[int] | None = None
    predicted_bytes: int | None = None
    command: str = ""


class Amplification(ReportPart, frozen=True, kw_only=True):
    """Bytes that calls fetched of a group, that libraries decoded of them, that the program was given.

    Null where that is not known, for the reason in `why`.
    """

    fetched_bytes: int | None
    decoded_bytes: int | None
    used_bytes: int | None
    fetched_per_used: float | None
    decoded_per_used: float | None
    why: str
    arrays: list[ChunkedArray]


class FileGroup(ReportPart, frozen=True, kw_only=True):
    """Files that are one thing to their user: a store, a dataset, a directory, an archive or one file.

    The first four figures are its cost of the data wait, per measured step; the others are over the run.
    """

    path: str
    kind: str
    members: int | None
    ms: float | None
    read_ms: float | None
    decode_ms: float | None
    transform_ms: float | None
    reads: int | None
    read_bytes: int | None
    read_ms_total: float | None
    write_bytes: int | None
    chunks: Chunks | None = None
    pattern: ReadPattern | None = None
    amplification: Amplification | None = None

    @property
    def cost_ms(self) -> float:
        """The ms of a step's wait in these files, and in the transform of what they held."""
        return (self.ms or 0.0) + (self.transform_ms or 0.0)


class ProcessCoverage(msgspec.Struct, frozen=True):
    """The bytes that a process read, traced and by the kernel's count; in the measured steps likewise."""

    pid: int
    role: str
    coverage: float | None
    traced_bytes: int | None
    kernel_bytes: int | None
    is_worker: bool = False
    steps_traced_bytes: int | None = None
    steps_kernel_bytes: int | None = None


class Io(ReportPart, frozen=True, kw_only=True):
    """`data_coverage`: of the processes that make batches, in the measured steps or over the run.

    `unseen_because` says what the kernel counts and the tracer does not; None where no data was read."""

    coverage: float | None
    data_coverage: float | None = None
    data_coverage_of_steps: bool = False
    unseen_because: str | None
    calls: int
    bytes: int
    ms_total: float
    files: list[FileIo]
    processes: list[ProcessCoverage]
    mounts: list[MountIo] | None = None
    device_reads: list[DeviceReads] | None = None


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
    """What a process of the rank used; `rss_peak_bytes` over its life, the rest over the measured time.

    `cpus`: those that its main thread may run on. `library_threads`: how many threads libraries may use in
    it. `run_delay_pct_mean`: of the time, its main thread was ready to run without a CPU.
    """

    pid: int
    role: str
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    rss_growth_bytes: int | None
    major_faults: int | None
    io_calls: int | None
    storage_read_bytes: int | None
    storage_write_bytes: int | None
    cpus: list[int] | None = None
    threads_peak: int | None = None
    library_threads: dict[str, int] = msgspec.field(default_factory=dict)
    run_delay_pct_mean: float | None = None
    involuntary_switches_per_s: float | None = None
    swap_bytes_peak: int | None = None


class Calibration(ReportPart, frozen=True, kw_only=True):
    """CPU time of the sampler's fixed piece of `work`, which it did `count` times over the measured steps.

    Its quartiles tell how fast the CPUs were: those of two runs relate CPU times of the one to the other.
    """

    work: str
    count: int
    quartile_us: float
    median_us: float


class HostUse(ReportPart, frozen=True, kw_only=True):
    """The rank's host over the measured time, of the CPUs that the job may use; shares are 0 to 1.

    `others_cpu_fraction`: what none of the job's processes used; `cpu_stolen_fraction`: what other virtual
    machines had. `cpu_throttled_fraction` is a share of the CPU quota's periods. `pressure_fraction` is the
    kernel's (PSI): time in which some task waited for that resource.
    """

    cpu_busy_fraction: float | None
    cpu_saturated_fraction: float | None
    others_cpu_fraction: float | None
    cpu_stolen_fraction: float | None
    iowait_fraction: float | None
    cpu_throttled_fraction: float | None
    pressure_fraction: dict[str, float]
    cgroup_pressure_fraction: dict[str, float]
    memory_available_bytes_min: int | None
    sampler_cpu_pct_mean: float | None
    calibration: Calibration | None = None


class Forecast(ReportPart, frozen=True, kw_only=True):
    """What runs out at the rate of the last half of the run: `what` is memory, descriptors, mappings or shm.

    `kind`: ``leak``, ``copy-on-write``, ``shared-memory``, or ``growth`` where nobody knows. `seconds` from
    the last sample until `used` meets `limit`; None where copying on write ends before. `grows`: bytes an
    hour by process. Of descriptors and mappings `pid` and `role` say whose.
    """

    what: str
    kind: str
    host: str
    pid: int | None
    role: str | None
    used: int
    limit: int
    limit_of: str
    per_hour: float
    per_hour_ci95: list[float]
    seconds: float | None
    seconds_ci95: list[float] | None
    grows: dict[str, float]
    text: str


class System(ReportPart, frozen=True, kw_only=True):
    """`cpu_pct_mean`: CPU of the rank's processes over the measured steps; 100 is one core.

    `cpus_usable`: the CPUs that the launch may use; `cpus_online`: how many the host has.
    """

    gpus: list[Gpu]
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    cpus: int | None
    processes: list[ProcessUse]
    host: HostUse | None
    cpus_usable: list[int] | None = None
    cpus_online: int | None = None


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
