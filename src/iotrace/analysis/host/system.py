"""What the rank's processes, its host and its accelerators did over the measured steps."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import numpy as np

from iotrace.analysis.host.measured import LONG_NS, MeasuredTime, cpu_percent, lifelong
from iotrace.analysis.host.others import others_and_stolen
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.results import Calibration, Gpu, HostUse, ProcessUse, System, total
from iotrace.sources.processes import Process
from iotrace.sources.records import Threads, WorkerUp
from iotrace.sources.session import Rank, Session
from iotrace.sources.telemetry import Floats, Host, SampledDevice, SampledProcess, Series, Telemetry

# Clock event reasons that hold the device back (NVML); idleness and clocks that someone set do not.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
_THROTTLES = sum(THROTTLE_REASONS)
_ABOUT = 0.95  # of the most that they held
_SATURATED = 0.95  # of each second, of all CPUs
_LEAST_CALIBRATIONS = 8
_LONGEST_NAME = 48  # of a program, in characters


def system_of(session: Session, rank: Rank, kept: StepTable) -> System:
    """Sum up the rank's `system`; CPU is by its processes' own account, where all have one."""
    telemetry = session.telemetry_of(rank.main)
    time = MeasuredTime(kept)
    cpu_pct = cpu_percent(rank, kept)
    processes: list[ProcessUse] = []
    peak_bytes = pss_bytes = None
    if telemetry is not None:
        sampled = [(process, telemetry.process_of(process)) for process in rank.processes]
        seen = [item for _, item in sampled if item is not None and len(item.samples)]
        if time.seen(telemetry.first_ns, telemetry.last_ns):
            together = total_memory(seen)
            peak_bytes = None if together is None else int(together.value.max())
            pss_bytes = None if together is None else _proportional(telemetry, seen, together)
        processes = [_process(process, item, rank, time, telemetry) for process, item in sampled]
        if cpu_pct is None and processes:
            cpu_pct = total(item.cpu_pct_mean for item in processes)
    return System(
        gpus=[] if telemetry is None else _gpus(telemetry, rank, kept, time),
        cpu_pct_mean=cpu_pct,
        rss_peak_bytes=peak_bytes,
        pss_peak_bytes=pss_bytes,
        cpus=rank.main.identity.cpus,
        processes=processes,
        host=None if telemetry is None else _host(session, rank.main, telemetry, time),
        cpus_usable=None if telemetry is None else telemetry.host.cpus or None,
        cpus_online=None if telemetry is None else telemetry.sampler.cpus_online,
        shared_cores=None if telemetry is None else telemetry.sampler.shared_cores,
    )


def total_memory(processes: list[SampledProcess]) -> Series | None:
    """Sum up the processes' resident memory at each sample; shared pages count in each."""
    if not processes:
        return None
    times = np.unique(np.concatenate([item.samples["time_ns"] for item in processes]))
    total = np.zeros(len(times))
    for item in processes:
        own = item.samples["time_ns"]
        index = np.searchsorted(own, times, side="right")
        alive = (index > 0) & (times <= own[-1])
        total[alive] += item.samples["rss_bytes"][index[alive] - 1]
    return Series(times, total)


def _proportional(telemetry: Telemetry, processes: list[SampledProcess], resident: Series) -> int | None:
    """Find the largest sum of their PSS; None where no look was near the most held."""
    times, held = resident.time_ns, resident.value
    at_ns = int(times[int(held.argmax())])
    lived = sum(each.samples["time_ns"][0] <= at_ns <= each.samples["time_ns"][-1] for each in processes)
    numbers = {each.number for each in processes}
    found = []
    for record, looked_ns in zip(telemetry.memory, telemetry.looked_ns, strict=True):
        look = [row[2] for row in record.processes if row[0] in numbers]
        then = held[np.searchsorted(times, looked_ns).clip(max=len(held) - 1)]
        if len(look) >= lived and then >= _ABOUT * held.max():
            found.append(sum(look))
    return max(found, default=None)


def _process(
    process: Process, sampled: SampledProcess | None, rank: Rank, time: MeasuredTime, telemetry: Telemetry
) -> ProcessUse:
    role, program = process.role, None
    if process is rank.main:
        role = "main"
    elif process.identity.role == "main":
        role, program = "child", _program(process.identity.argv)
    settings = process.of_type(Threads)
    threads = settings[-1].threads if settings else {}
    cpus = settings[-1].affinity or None if settings else None  # what it said itself
    if sampled is None:
        return ProcessUse(pid=process.pid, role=role, program=program, library_threads=threads, cpus=cpus)

    def growth(counter: Series | None) -> float | None:
        """Of a process made, or ended, within the measured time: its counters stood still outside."""
        return time.growth(counter and lifelong(counter, sampled.start_ns, telemetry.last_ns))

    def per_second(counter: Series | None) -> float | None:
        return time.per_second(growth(counter))

    def percent(counter_ns: Series | None) -> float | None:
        ns = per_second(counter_ns)
        return None if ns is None else ns / 1e7

    peak_bytes, grown_bytes = None, None
    memory = sampled.series("rss_bytes")
    if memory is not None:
        if time.seen(telemetry.first_ns, telemetry.last_ns):
            peak_bytes = int(memory.value.max())
        grown_bytes = time.change(memory, _ready_ns(process, sampled), telemetry.gone_ns(sampled))
    calls = total(growth(sampled.series(field)) for field in ("read_calls", "write_calls"))
    pool_delay, pool_busy = map(percent, sampled.pool_ns or (None, None))
    return ProcessUse(
        pid=process.pid,
        role=role,
        program=program,
        cpu_pct_mean=percent(sampled.series("cpu_ns")),
        rss_peak_bytes=peak_bytes,
        rss_growth_bytes=_whole(grown_bytes),
        major_faults=_whole(growth(sampled.series("major_faults"))),
        io_calls=_whole(calls),
        storage_read_bytes=_whole(growth(sampled.series("read_bytes"))),
        storage_write_bytes=_whole(growth(sampled.series("write_bytes"))),
        cpus=time.in_the_middle(sampled.affinity) or cpus,
        threads_peak=int(sampled.samples["threads"].max()) if len(sampled.samples) else None,
        library_threads=threads,
        run_delay_pct_mean=percent(sampled.run_delay_ns),
        pool_delay_pct_mean=pool_delay,
        pool_busy_pct_mean=pool_busy,
        involuntary_switches_per_s=per_second(sampled.switches[1] if sampled.switches else None),
        swap_bytes_peak=None if sampled.swap_bytes is None else int(sampled.swap_bytes.value.max()),
    )


def _program(argv: Sequence[str]) -> str | None:
    """Name a program by its script and arguments, in short: of paths their last part."""
    name = " ".join(posixpath.basename(word) or word for word in argv[1:])
    return name[:_LONGEST_NAME] + "…" * (len(name) > _LONGEST_NAME) or None


def _ready_ns(process: Process, sampled: SampledProcess) -> int:
    """When its memory is its own: a worker's when it first asks for work, as it has its dataset then."""
    up = [process.clock.to_session_ns(each.mono_ns) for each in process.of_type(WorkerUp)]
    return max(sampled.start_ns, min(up, default=sampled.start_ns))


def _host(session: Session, main: Process, telemetry: Telemetry, time: MeasuredTime) -> HostUse:
    host = telemetry.host

    def share(name: str, units_per_second: float) -> float | None:
        """Compute the growth of a counter of time, as a share of the measured time."""
        grown = time.per_second(time.growth(host.figures.get(name)))
        return None if grown is None else grown / units_per_second

    def pressures(prefix: str) -> dict[str, float]:
        found = {name: share(f"{prefix}{name}_pressure_us", 1e6) for name in ("cpu", "memory", "io")}
        # Read a little after the clock, it may seem to have grown more than time went by.
        return {name: min(1.0, value) for name, value in found.items() if value is not None}

    def per_cpu(shares: Floats) -> Series | None:
        known = ~np.isnan(shares).any(axis=1)
        if not shares.shape[1] or not known.any():
            return None
        return Series(host.time_ns[known], shares[known].mean(axis=1))

    busy = per_cpu(host.busy)
    full = per_cpu((host.busy >= _SATURATED).all(axis=1, keepdims=True).astype(float)) if busy else None
    sampler = share("sampler_cpu_ns", 1e9)
    others, stolen = others_and_stolen(session, main, telemetry, time)
    return HostUse(
        cpu_busy_fraction=time.mean(busy, LONG_NS),
        cpu_saturated_fraction=time.mean(full, LONG_NS),
        others_cpu_fraction=others,
        cpu_stolen_fraction=stolen,
        iowait_fraction=time.mean(per_cpu(host.iowait), LONG_NS),
        cpu_throttled_fraction=_throttled(host, time),
        pressure_fraction=pressures(""),
        cgroup_pressure_fraction=pressures("cgroup_"),
        sampler_cpu_pct_mean=None if sampler is None else 100 * sampler,
        calibration=_calibration(telemetry, time),
        **time.folded(HostUse, host.figures),
    )


def _calibration(telemetry: Telemetry, time: MeasuredTime) -> Calibration | None:
    """Sum up the sampler's piece of work; None where it was not done often enough for a quartile."""
    taken = telemetry.host.calibration_ns
    if taken is None or not telemetry.sampler.calibration:
        return None
    cpu_us = taken.value[time.weights(taken.time_ns) > 0] / 1e3
    if len(cpu_us) < _LEAST_CALIBRATIONS or cpu_us.min() <= 0:
        return None
    quartile_us, median_us = np.percentile(cpu_us, [25, 50])
    return Calibration(
        work=telemetry.sampler.calibration,
        count=len(cpu_us),
        quartile_us=float(quartile_us),
        median_us=float(median_us),
    )


def _throttled(host: Host, time: MeasuredTime) -> float | None:
    """Find, of the group that its quota held back most, the share of its periods; None without a quota."""
    shares = []
    for periods, held_back in host.quotas.values():
        ran, stopped = time.growth(periods), time.growth(held_back)
        if ran is not None and stopped is not None:
            shares.append(min(1.0, stopped / ran) if ran else 0.0)
    return max(shares, default=None)


def devices_of(telemetry: Telemetry, rank: Rank) -> list[SampledDevice]:
    """Choose the devices on which the rank's processes had memory; all of the host where none is known to."""
    pids = _host_pids(telemetry, rank)
    used = [
        device
        for device in telemetry.devices
        if device.users and any(pid in pids for _, pid, _ in device.users)
    ]
    return used or telemetry.devices


def _host_pids(telemetry: Telemetry, rank: Rank) -> set[int]:
    """Find the pids by which drivers know the rank's processes: in PID namespaces others than their own."""
    sampled = [(process, telemetry.process_of(process)) for process in rank.processes]
    return {process.pid if item is None else item.host_pid for process, item in sampled}


def _gpus(telemetry: Telemetry, rank: Rank, kept: StepTable, time: MeasuredTime) -> list[Gpu]:
    known = kept.known("samples").all()
    sample_count = int(kept["samples"].sum()) if known else None
    pids = _host_pids(telemetry, rank)
    return [_gpu(device, pids, len(kept), sample_count, time) for device in devices_of(telemetry, rank)]


def _gpu(device: SampledDevice, pids: set[int], steps: int, samples: int | None, time: MeasuredTime) -> Gpu:
    series, about = device.series, device.about
    # The driver's buffer holds every period once; a polled value may be the same period's again.
    buffered = time.mean(series.get("util_samples"))
    util = series.get("util_pct" if buffered is None else "util_samples")
    util_mean = time.mean(util)
    memory_util = time.mean(series.get("memory_util_samples"))
    power_w, energy_j, source = _power(device, time)
    throttled, reasons = _throttling(series.get("clock_reasons"), time)
    return Gpu(
        index=about.index,
        instance=about.instance,
        uuid=about.uuid,
        name=about.name,
        memory_total_bytes=about.memory_total_bytes,
        memory_bytes_peak=_whole(time.extreme(series.get("memory_bytes"))),
        rank_memory_bytes_peak=_users_peak(device, pids),
        util_pct_mean=util_mean,
        util_pct_peak=time.extreme(util),
        util_source=None if util_mean is None else "polled" if buffered is None else "buffered",
        memory_util_pct_mean=time.mean(series.get("memory_util_pct")) if memory_util is None else memory_util,
        power_w_mean=power_w,
        power_w_peak=time.extreme(series.get("power_samples", series.get("power_w"))),
        energy_j=energy_j,
        energy_source=source,
        energy_j_per_step=energy_j / steps if energy_j is not None and steps else None,
        energy_j_per_sample=energy_j / samples if energy_j is not None and samples else None,
        throttled_fraction=throttled,
        throttle_reasons=reasons,
        **time.folded(Gpu, series),
    )


def _power(device: SampledDevice, time: MeasuredTime) -> tuple[float | None, float | None, str | None]:
    """Find mean power, energy, and their source: the device's counter of energy, else its power."""
    energy_j = time.growth(device.series.get("energy_j"))
    if energy_j is not None:
        return time.per_second(energy_j), energy_j, "counter"
    buffered_w = time.mean(device.series.get("power_samples"))
    power_w = time.mean(device.series.get("power_w")) if buffered_w is None else buffered_w
    if power_w is None:
        return None, None, None
    return power_w, power_w * time.length_ns / 1e9, "power"


def _throttling(reasons: Series | None, time: MeasuredTime) -> tuple[float | None, dict[str, float]]:
    """Find the share of the time in which something held the device back, and that of each reason."""
    if reasons is None:
        return None, {}
    bits = reasons.value.astype(np.int64)

    def share(mask: int) -> float | None:
        return time.mean(Series(reasons.time_ns, ((bits & mask) != 0).astype(np.float64)))

    shares = {name: share(bit) for bit, name in THROTTLE_REASONS.items()}
    return share(_THROTTLES), {name: value for name, value in shares.items() if value}


def _users_peak(device: SampledDevice, pids: set[int]) -> int | None:
    """Find the most that the rank's processes held together at one poll; None where the driver hides it."""
    if device.users is None:
        return None
    totals: dict[int, int] = {}
    for time_ns, pid, size in device.users:
        if pid in pids:
            if size is None:
                return None
            totals[time_ns] = totals.get(time_ns, 0) + size
    return max(totals.values(), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
