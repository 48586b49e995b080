"""The machine: processes, host, GPUs, what runs out, and what tracing cost."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure

# What tracing may take of a step: from where on its figures are doubtful, and from where on bad.
TRACING_PERCENT = (2.0, 10.0)
_BUSY, _SATURATED = 0.9, 0.2  # of the CPUs' time: none is free


class Gpu(ReportPart, frozen=True, kw_only=True):
    """An accelerator that the rank used (any, where that is unknown), or a MIG instance of one.

    Means and sums are over the measured time: what the measured steps cover.
    """

    index: Annotated[int, figure("number by the driver")]
    instance: Annotated[int | None, figure("number of the MIG instance; null but for one")] = None
    uuid: Annotated[str, figure("as the driver has it")]
    name: Annotated[str, figure("as the driver has it")]
    memory_total_bytes: Annotated[int | None, figure("size of its memory")] = None
    memory_bytes_peak: Annotated[int | None, figure("most in use, by anyone, at a poll in the measured time", said="memory", counter="memory")] = None
    rank_memory_bytes_peak: Annotated[int | None, figure("most held by the rank's processes at a poll of the run", said="memory of the rank")] = None
    util_pct_mean: Annotated[float | None, figure("time in which a kernel ran, by the driver's own periods", said="utilisation", place=-1)] = None
    util_pct_peak: Annotated[float | None, figure("the same, the largest period")] = None
    util_source: Annotated[str | None, figure("`buffered`: each of the driver's periods once; `polled`: its last one, every 0.5 s")] = None
    memory_util_pct_mean: Annotated[
        float | None, figure("time in which its memory was read or written; buffered where the driver keeps it, else polled", said="memory bandwidth")
    ] = None
    power_w_mean: Annotated[float | None, figure("`energy_j` / measured time", said="power", counter="power")] = None
    power_w_peak: Annotated[float | None, figure("largest power sample: the driver's buffer, else polls every 0.5 s")] = None
    energy_j: Annotated[float | None, figure("over the measured time")] = None
    energy_source: Annotated[str | None, figure("`counter`: the device's own; `power`: mean of its power samples x measured time")] = None
    energy_j_per_step: Annotated[float | None, figure("by the measured steps", said="energy a step")] = None
    energy_j_per_sample: Annotated[float | None, figure("by the samples of their batches", said="energy a sample")] = None
    sm_clock_mhz_mean: Annotated[float | None, figure("polled every 0.5 s", counter="SM clock", fold="gauge")] = None
    memory_clock_mhz_mean: Annotated[float | None, figure("polled every 0.5 s", counter="memory clock", fold="gauge")] = None
    temperature_c_max: Annotated[float | None, figure("polled every 0.5 s", said="temperature", counter="temperature", fold="gauge")] = None
    pcie_sent_bytes_per_s_mean: Annotated[
        float | None, figure("from the device; 20 ms every 2 s, of over 4 devices 4 s", said="sent over PCIe", place=1, counter="PCIe sent", fold="gauge")
    ] = None
    pcie_received_bytes_per_s_mean: Annotated[
        float | None, figure("to the device; 20 ms every 2 s, of over 4 devices 4 s", said="received over PCIe", counter="PCIe received", fold="gauge")
    ] = None
    throttled_fraction: Annotated[float | None, figure("polls at which one of the reasons below held its clocks back")] = None
    throttle_reasons: Annotated[dict[str, float], figure("the same by reason; `{}` where there was none", "0 to 1")] = msgspec.field(default_factory=dict)
    numa_node: Annotated[int | None, figure("of its PCI bus; null where the firmware does not say, and of MIG instances")] = None


class ProcessUse(ReportPart, frozen=True, kw_only=True):
    """What a process of the rank used; `rss_peak_bytes` over its life, the rest over the measured time."""

    pid: Annotated[int, figure("as the rank's node has it")]
    role: Annotated[str, figure("`main`, `worker <number>`, or `child`: a program that the training process started")]
    program: Annotated[str | None, figure("the script of a child, and its arguments", null="no child, or not known")] = None
    cpu_pct_mean: Annotated[float | None, figure("over the measured time, to within ticks of 10 ms", "% of one core", said="CPU")] = None
    rss_peak_bytes: Annotated[int | None, figure("largest sample of its life", said="memory")] = None
    rss_growth_bytes: Annotated[
        int | None, figure("last sample within the measured time less the first, of a worker since it first asked for work; may be negative")
    ] = None
    major_faults: Annotated[int | None, figure("page faults with I/O in the measured time")] = None
    io_calls: Annotated[int | None, figure("read and write calls in the measured time, by the kernel's account")] = None
    storage_read_bytes: Annotated[int | None, figure("what reached storage")] = None
    storage_write_bytes: Annotated[int | None, figure("the same; what iotrace writes in it is included")] = None
    cpus: Annotated[list[int] | None, figure("the CPUs that its main thread may run on, in the middle of the measured time")] = None
    threads_peak: Annotated[int | None, figure("most threads in a sample")] = None
    library_threads: Annotated[dict[str, int], figure("threads that an imported library may use in it")] = msgspec.field(default_factory=dict)
    run_delay_pct_mean: Annotated[float | None, figure("its main thread was ready to run, but had no CPU (schedstat)", "% of the time")] = None
    pool_delay_pct_mean: Annotated[float | None, figure("the same of another thread, the worst in each second: a lower bound", "% of the time")] = None
    pool_busy_pct_mean: Annotated[float | None, figure("the same, and time on a CPU", "% of the time")] = None
    involuntary_switches_per_s: Annotated[float | None, figure("its main thread lost its CPU to another")] = None
    swap_bytes_peak: Annotated[int | None, figure("of its memory in swap, the largest sample")] = None
    swap_in_bytes: Annotated[int | None, figure("of its memory, read back from swap in the measured time, at least")] = None
    memory_nodes: Annotated[list[int] | None, figure("the NUMA nodes that it may have memory of (`cpuset.mems`), in the middle likewise")] = None


class Calibration(ReportPart, frozen=True, kw_only=True):
    """CPU time of the sampler's fixed piece of work, which tells how fast the CPUs were.

    Its quartiles in two runs relate CPU times of the one to the other.
    """

    work: Annotated[str, figure("what it did: inflating 64 KiB")]
    count: Annotated[int, figure("how often, over the measured steps")]
    quartile_us: Annotated[float, figure("CPU time of it, the lower quartile")]
    median_us: Annotated[float, figure("the median")]


class HostUse(ReportPart, frozen=True, kw_only=True):
    """The rank's host over the measured time, of the CPUs that the job may use; shares are 0 to 1."""

    cpu_busy_fraction: Annotated[float | None, figure("mean over those CPUs; stolen time is busy", said="host's cores busy")] = None
    cpu_saturated_fraction: Annotated[float | None, figure("seconds in which each of them was busy for 95 % or more")] = None
    others_cpu_fraction: Annotated[float | None, figure("of those CPUs' time what other programs used", said="of that: other programs")] = None
    cpu_stolen_fraction: Annotated[float | None, figure("the same, what the hypervisor gave to others while they had work")] = None
    iowait_fraction: Annotated[float | None, figure("idle with a block read or write outstanding, mean over those CPUs", said="host waits for storage")] = None
    cpu_throttled_fraction: Annotated[float | None, figure("of a CPU quota's periods those at whose end the group was held back")] = None
    pressure_fraction: Annotated[dict[str, float], figure("time in which some task waited for `cpu`, `memory` or `io` (PSI, `some`)")] = msgspec.field(
        default_factory=dict
    )
    cgroup_pressure_fraction: Annotated[dict[str, float], figure("the same of the job's cgroup, where it has one")] = msgspec.field(default_factory=dict)
    memory_available_bytes_min: Annotated[int | None, figure("`MemAvailable`", said="host's free memory, at least", fold="gauge")] = None
    memory_dirty_bytes_max: Annotated[int | None, figure("written to files and not yet to storage", said="to be written, at most", fold="gauge")] = None
    tcp_retransmits_per_s_mean: Annotated[float | None, figure("TCP segments that the host sent again", said="TCP sent again", fold="counter")] = None
    sampler_cpu_pct_mean: Annotated[float | None, figure("what the sidecar itself used", "% of one core")] = None
    calibration: Annotated[Calibration | None, figure("how fast the CPUs were")] = None
    swap_in_bytes: Annotated[int | None, figure("memory of the job's control group that came back from swap")] = None

    @property
    def has_free_cpus(self) -> bool:
        """Whether there was a CPU that neither the job nor anything else kept busy."""
        busy, saturated = self.cpu_busy_fraction, self.cpu_saturated_fraction
        return busy is not None and busy < _BUSY and (saturated or 0.0) < _SATURATED


class Forecast(ReportPart, frozen=True, kw_only=True):
    """What runs out at the rate of the later half of the run."""

    what: Annotated[str, figure("`memory`, `descriptors`, `mappings` or `shm`")]
    kind: Annotated[str, figure("`leak`, `copy-on-write`, `shared-memory`, or `growth` where nobody knows")]
    host: Annotated[str, figure("where it runs out")]
    pid: Annotated[int | None, figure("whose descriptors or mappings", null="of memory and shm")] = None
    role: Annotated[str | None, figure("its role", null="of memory and shm")] = None
    used: Annotated[int, figure("now")]
    limit: Annotated[int, figure("what there is")]
    limit_of: Annotated[str, figure("whose limit that is")]
    per_hour: Annotated[float, figure("the rate of the later half of the run")]
    per_hour_ci95: Annotated[list[float], figure("its 95 % interval")]
    seconds: Annotated[float | None, figure("from the last sample until `used` meets `limit`", null="copying on write ends before")] = None
    seconds_ci95: Annotated[list[float] | None, figure("the same by the interval's ends", null="`seconds` is")] = None
    grows: Annotated[dict[str, float], figure("bytes an hour by process")]
    text: Annotated[str, figure("the sentence")]
    code: Annotated[str | None, figure("of its rule (`iotrace explain CODE`)", null="older reports")] = None


class NumaNode(ReportPart, frozen=True, kw_only=True):
    """A NUMA node of the host."""

    node: Annotated[int, figure("its number")]
    cpus: Annotated[list[int], figure("its CPUs")]
    memory_bytes: Annotated[int | None, figure("its memory")] = None
    distances: Annotated[list[int], figure("to each node, in order; 10 is itself")]


class System(ReportPart, frozen=True, kw_only=True):
    """What the rank's processes, its host and its devices did over the measured steps."""

    gpus: Annotated[list[Gpu], figure("empty where none was seen")] = msgspec.field(default_factory=list)
    cpu_pct_mean: Annotated[float | None, figure("CPU of the rank's processes", "% of one core", null="a process has no account", said="CPU")] = None
    rss_peak_bytes: Annotated[
        int | None,
        figure(
            "largest sum of their resident memory at one instant of the run",
            null="not sampled, or for less than three quarters of the measured time",
            said="memory",
        ),
    ] = None
    pss_peak_bytes: Annotated[
        int | None,
        figure(
            "the same without pages of files, shared pages divided (PSS): the largest of looks 2 s after processes were added, and each 10 s or rarer",
            null="no look found as many processes as the largest sum, and 95 % of it",
            said="memory (shared pages once)",
        ),
    ] = None
    cpus: Annotated[int | None, figure("CPUs that the training process may run on", null="unknown")] = None
    processes: Annotated[list[ProcessUse], figure("empty where the host was not sampled")] = msgspec.field(default_factory=list)
    host: Annotated[HostUse | None, figure("the host of these, over the measured time", null="the host was not sampled")] = None
    cpus_usable: Annotated[list[int] | None, figure("the CPUs that the launch may use", null="without a sidecar")] = None
    cpus_online: Annotated[int | None, figure("how many the host has", null="without a sidecar")] = None
    shared_cores: Annotated[bool | None, figure("whether CPUs share cores (SMT, hyper-threads)", null="the kernel does not say")] = None
    numa_nodes: Annotated[list[NumaNode] | None, figure("the host's nodes", null="they are hidden")] = None


class Overhead(ReportPart, frozen=True, kw_only=True):
    """What tracing itself may have cost: counts over the run, costs as measured on `measured_on` after it."""

    posix_calls: Annotated[int | None, figure("calls of the rank's processes, as `io.calls`", null="POSIX calls were not traced")] = None
    spans: Annotated[int, figure("spans of the rank's processes")]
    hooks_ms: Annotated[float, figure("CPU time of the hooks in them beside plain spans, measured there by one call in 17; 0 in older sessions")] = 0.0
    processes: Annotated[int, figure("the training process and its workers")]
    posix_call_us: Annotated[float | None, figure("added to a read of 4 KiB by the POSIX tracer, after other work", null="not measured, or not traced")] = None
    next_posix_call_us: Annotated[float | None, figure("the same, for a read that follows another", null="as above")] = None
    span_us: Annotated[float | None, figure("added to an empty call by timing it", null="not measured")] = None
    process_start_ms: Annotated[float | None, figure("CPU time added to the start of a Python process, by all sources", null="not measured")] = None
    measured_on: Annotated[str | None, figure("host where it was measured: that of the job's first launcher", null="not measured")] = None
    consumer_pct_of_step: Annotated[
        float | None, figure("cost of the calls, spans and hooks on the consumer's threads / length of the steps", "%", null="no step, or a cost unknown")
    ] = None
    workers_pct_of_production: Annotated[
        float | None, figure("cost of the workers' calls, spans and hooks / length of their productions", "%", null="no workers, none known, or as above")
    ] = None
    estimated_pct_of_step: Annotated[float | None, figure("by how much the steps would be shorter at most", "%", null="as `consumer_pct_of_step`")] = None
    least_pct_of_step: Annotated[float | None, figure("the same, of workers pro rata to the waits for their batches", "%", null="as above")] = None
    evaluation_pct: Annotated[
        float | None,
        figure("cost of calls, spans and hooks on the consumer's threads in evaluation passes / length of these, at most", "%", null="no pass, or as above"),
    ] = None

    @property
    def calls_cost_most(self) -> bool:
        """Whether to trace POSIX calls cost more than spans and hooks did, at the least."""
        calls_us = (self.posix_calls or 0) * (self.next_posix_call_us or 0.0)
        return calls_us > self.spans * (self.span_us or 0.0) + 1e3 * self.hooks_ms

    @property
    def is_for_calls(self) -> bool:
        """Whether tracing took so much that figures are bad, and POSIX calls cost most of it."""
        return (self.least_pct_of_step or 0.0) >= TRACING_PERCENT[1] and self.calls_cost_most
