"""The machine: processes, host, GPUs, what runs out, and what tracing cost."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart

# What tracing may take of a step: from where on its figures are doubtful, and from where on bad.
TRACING_PERCENT = (2.0, 10.0)
_BUSY, _SATURATED = 0.9, 0.2  # of the CPUs' time: none is free


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
    numa_node: int | None = None


class ProcessUse(ReportPart, frozen=True, kw_only=True):
    """What a process of the rank used; `rss_peak_bytes` over its life, the rest over the measured time.

    `cpus`: those that its main thread may run on. `library_threads`: how many threads libraries may use in
    it. `swap_in_bytes`: what of its memory it read back from swap; `memory_nodes`: the NUMA nodes that it may
    have memory of. `run_delay_pct_mean`: of the time, its main thread was ready to run without a CPU;
    `pool_delay_pct_mean`: one of its other threads was, `pool_busy_pct_mean`: was or ran; both at least.
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
    pool_delay_pct_mean: float | None = None
    pool_busy_pct_mean: float | None = None
    involuntary_switches_per_s: float | None = None
    swap_bytes_peak: int | None = None
    swap_in_bytes: int | None = None
    memory_nodes: list[int] | None = None


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
    kernel's (PSI): time in which some task waited for that resource. `swap_in_bytes`: memory of the job's
    control group that came back from swap.
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
    swap_in_bytes: int | None = None

    @property
    def has_free_cpus(self) -> bool:
        """Whether there was a CPU that neither the job nor anything else kept busy."""
        busy, saturated = self.cpu_busy_fraction, self.cpu_saturated_fraction
        return busy is not None and busy < _BUSY and (saturated or 0.0) < _SATURATED


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


class NumaNode(ReportPart, frozen=True, kw_only=True):
    """A NUMA node of the host: its CPUs, its memory, how far each node is from it (10: itself)."""

    node: int
    cpus: list[int]
    memory_bytes: int | None
    distances: list[int]


class System(ReportPart, frozen=True, kw_only=True):
    """`cpu_pct_mean`: CPU of the rank's processes over the measured steps; 100 is one core.

    `cpus_usable`: the CPUs that the launch may use; `cpus_online`: how many the host has;
    `numa_nodes`: null where it hides them.
    """

    gpus: list[Gpu]
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    cpus: int | None
    processes: list[ProcessUse]
    host: HostUse | None
    cpus_usable: list[int] | None = None
    cpus_online: int | None = None
    numa_nodes: list[NumaNode] | None = None


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

    @property
    def calls_cost_most(self) -> bool:
        """Whether to trace POSIX calls cost more than spans did, at the least."""
        calls_us = (self.posix_calls or 0) * (self.next_posix_call_us or 0.0)
        return calls_us > self.spans * (self.span_us or 0.0)

    @property
    def is_for_calls(self) -> bool:
        """Whether tracing took so much that figures are bad, and POSIX calls cost most of it."""
        return (self.least_pct_of_step or 0.0) >= TRACING_PERCENT[1] and self.calls_cost_most
