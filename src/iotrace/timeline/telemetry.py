"""The sidecar's samples as counters: of each process, of the host, of each device."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.host.system import devices_of
from iotrace.analysis.results.base import figures_of
from iotrace.analysis.results.host import Gpu
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.session import Rank, Session
from iotrace.sources.telemetry import Floats, Host, SampledDevice, SampledProcess, Series, Telemetry
from iotrace.timeline.model import Counter, ProcessTracks, Timeline

# A node's every core is shown up to this number; above, their mean alone.
_MOST_CORES = 32
_MIB = 1 << 20
# Growing figures of a process, the sum of the fields.
_PROCESS_RATES = (
    (("read_bytes",), "storage read", "MiB/s", 1.0 / _MIB),
    (("write_bytes",), "storage written", "MiB/s", 1.0 / _MIB),
    (("read_calls", "write_calls"), "I/O calls", "/s", 1.0),
    (("major_faults",), "major faults", "/s", 1.0),
)
_SWITCHES = ("voluntary switches", "involuntary switches")
# Growing figures of the host: shown as a rate per second.
_HOST_RATES = (
    ("cpu_pressure_us", "CPU pressure", "%", 1e-4),
    ("memory_pressure_us", "memory pressure", "%", 1e-4),
    ("io_pressure_us", "I/O pressure", "%", 1e-4),
    ("disk_read_bytes", "disk read", "MiB/s", 1.0 / _MIB),
    ("disk_write_bytes", "disk written", "MiB/s", 1.0 / _MIB),
    ("net_received_bytes", "network received", "MiB/s", 1.0 / _MIB),
    ("net_sent_bytes", "network sent", "MiB/s", 1.0 / _MIB),
)


def add_telemetry(session: Session, rank: Rank, timeline: Timeline) -> None:
    """Add counters to the tracks of the rank's processes, and tracks for its devices.

    The first rank of a host has those of the host. The tracks of `timeline` are those of ``rank.processes``,
    in that order.
    """
    telemetry = session.telemetry_of(rank.main)
    if telemetry is None:
        return
    is_over = all(launch.outcome is not None for launch in session.launches)
    for process, tracks in zip(rank.processes, timeline.processes, strict=True):
        sampled = telemetry.process_of(process)
        if sampled is not None:
            tracks.counters += _process(sampled, telemetry, is_over)
    title = f"rank {rank.number}"
    for device in devices_of(telemetry, rank):
        timeline.processes.append(_device(title, device))
    if next(each for each in session.ranks if session.telemetry_of(each.main) is telemetry) is rank:
        host = ProcessTracks(f"host {telemetry.sampler.node}", "")
        host.counters += _host(telemetry.host)
        timeline.processes.append(host)


def _process(sampled: SampledProcess, telemetry: Telemetry, is_over: bool) -> list[Counter]:
    cpu, memory = sampled.series("cpu_ns"), sampled.series("rss_bytes")
    counters = []
    if cpu is not None:
        counters.append(Counter("CPU", _rate(_apart(cpu, telemetry), 1e-7), "%"))
    if memory is not None:
        counters.append(_gauge("RSS", memory, "bytes"))
        gone_ns = telemetry.gone_ns(sampled)
        if gone_ns is None and is_over:  # it was there to the last sample
            gone_ns = telemetry.last_ns + telemetry.sampler.interval_ns
        if gone_ns is not None:
            counters[-1].points.append((gone_ns, 0.0))
    rates = []
    for fields, shown, unit, factor in _PROCESS_RATES:
        columns = [column for column in map(sampled.series, fields) if column is not None]
        if len(columns) == len(fields):
            grown = Series(columns[0].time_ns, np.sum([column.value for column in columns], axis=0))
            rates.append(Counter(shown, _rate(_apart(grown, telemetry), factor), unit))
    for shown, counter in zip(_SWITCHES, sampled.switches or (), strict=False):
        rates.append(Counter(shown, _rate(counter, 1.0), "/s"))
    # Most processes do little of all this: a line at 0 says less than none.
    return counters + [counter for counter in rates if any(value for _, value in counter.points)]


def _apart(counter: Series, telemetry: Telemetry) -> Series:
    """Without the second sample if it came right after the first, which is taken as a process is found."""
    if len(counter.time_ns) < 3 or np.diff(counter.time_ns[:2])[0] >= telemetry.sampler.interval_ns / 2:
        return counter
    return Series(np.delete(counter.time_ns, 1), np.delete(counter.value, 1))


def _device(title: str, device: SampledDevice) -> ProcessTracks:
    about = device.about
    instance = "" if about.instance is None else f".{about.instance}"
    tracks = ProcessTracks(f"{title} · gpu {about.index}{instance} {about.name}", about.uuid)
    for name, shown in (("util", "utilisation"), ("memory_util", "memory utilisation")):
        util = device.series.get(f"{name}_samples", device.series.get(f"{name}_pct"))
        if util is not None:
            tracks.counters.append(_average(shown, util.time_ns, util.value))
    for figure in figures_of(Gpu):
        if figure.counter and figure.sampled in device.series:
            unit, factor = ("MiB/s", 1.0 / _MIB) if figure.unit == "bytes/s" else (figure.unit, 1.0)
            tracks.counters.append(_gauge(figure.counter, device.series[figure.sampled], unit, factor))
    return tracks


def _host(host: Host) -> list[Counter]:
    counters = []
    known = ~np.isnan(host.busy).any(axis=1) if len(host.cpus) else np.zeros(0, dtype=np.bool_)
    if known.any():
        times = host.time_ns[known]
        counters.append(_average("CPU", times, 100 * host.busy[known].mean(axis=1)))
        counters.append(_average("iowait", times, 100 * host.iowait[known].mean(axis=1)))
        if len(host.cpus) <= _MOST_CORES:
            for column, cpu in enumerate(host.cpus):
                counters.append(_average(f"CPU {cpu}", times, 100 * host.busy[known, column]))
    for name, shown, unit, factor in _HOST_RATES:
        if name in host.figures:
            counters.append(Counter(shown, _rate(host.figures[name], factor), unit))
    if "memory_available_bytes" in host.figures:
        counters.append(_gauge("memory available", host.figures["memory_available_bytes"], "bytes"))
    return counters


def _gauge(name: str, series: Series, unit: str, factor: float = 1.0) -> Counter:
    values = (series.value * factor).tolist()
    return Counter(name, list(zip(series.time_ns.tolist(), values, strict=True)), unit)


def _average(name: str, time_ns: Times, values: Floats) -> Counter:
    """Averages in percent, each over the time since the one before: drawn from there on."""
    starts = np.concatenate((time_ns[:1] - np.diff(time_ns[:2]).sum(), time_ns[:-1]))
    counter = _gauge(name, Series(starts, values), "%")
    counter.points.append((int(time_ns[-1]), 0.0))
    return counter


def _rate(counter: Series, factor: float) -> list[tuple[int, float]]:
    """The growth per second times `factor`, each at the start of the time that it belongs to, then 0.

    Perfetto draws a value from its time up to the next one.
    """
    elapsed_ns = np.diff(counter.time_ns)
    apart = elapsed_ns > 0
    rates = np.diff(counter.value)[apart] / (elapsed_ns[apart] / 1e9) * factor
    points = list(zip(counter.time_ns[:-1][apart].tolist(), rates.tolist(), strict=True))
    return [*points, (int(counter.time_ns[-1]), 0.0)] if points else []
