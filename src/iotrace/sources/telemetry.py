"""What the sidecars sampled, as columns over CLOCK_REALTIME: processes, hosts, devices.

Take from a process's samples what the kernel added to them for children that it waited for.

Linux adds a child's account of I/O to its parent's when the parent takes its exit code: what a worker read
would count twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.reading import read_whole
from iotrace.sources.clocks.anchors import Clocks, relate_clocks
from iotrace.sources.clocks.realtime_correction import restamp_one
from iotrace.sources.clocks.session_clock import Clock, Times
from iotrace.sources.processes import Process
from iotrace.sources.records import Int
from iotrace.sources.rows import read_rows
from iotrace.sources.samples import (
    SAMPLE_DTYPE,
    DeviceRecord,
    Floats as Floats,
    GpuRecord,
    Lists,
    MemoryRecord,
    Problem,
    ProcessRecord,
    SamplerEnd,
    SamplerRecord,
    Series as Series,
    Sidecar,
    SystemRecord,
    Unavailable,
    by_process,
    listed,
)

_SOON = 300  # samples, a minute: a child that ended is waited for in that
_COUNTERS = ("rchar", "wchar", "read_calls", "write_calls", "read_bytes", "write_bytes")


def without_reaped(records: Sequence[ProcessRecord], samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `samples`, sorted by process, without what ended children have added to their parents'.

    A child was waited for at the first of its parent's samples after its own last one at which all counters
    have grown by what the child had then.
    """
    children: dict[int, list[ProcessRecord]] = defaultdict(list)
    for record in records:
        children[record.ppid].append(record)
    copied: npt.NDArray[Any] = samples.copy()
    for record in records:
        own = _rows(record, copied)
        for child in children.get(record.pid, []):
            theirs = _rows(child, samples)
            if child.start_ns >= record.start_ns and len(theirs) and len(own):
                _take(own, theirs[-1])
    return copied


def _rows(record: ProcessRecord, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    first, behind = np.searchsorted(samples["process"], [record.number, record.number + 1]).tolist()
    own: npt.NDArray[Any] = samples[first:behind]  # a view
    return own


def _take(own: npt.NDArray[Any], last: np.void) -> None:
    if any(last[name] < 0 for name in _COUNTERS):
        return
    first = int(np.searchsorted(own["time_ns"], last["time_ns"], side="right"))
    near = own[max(0, first - 1) : first + _SOON]
    grown = np.all([np.diff(near[name]) >= last[name] for name in _COUNTERS], axis=0)
    at = np.flatnonzero(grown)
    if len(at) and any(last[name] for name in _COUNTERS):
        for name in _COUNTERS:
            own[name][max(0, first - 1) + int(at[0]) + 1 :] -= last[name]


# The kernel gives a process's start in ticks of 10 ms; the agent's first clock reading is later.
_START_SLACK_NS = 50_000_000
_BUFFERED = ("util_samples", "memory_util_samples", "power_samples")
_GAUGES = [
    field.name
    for field in msgspec.structs.fields(GpuRecord)
    if field.name not in ("device", "mono_ns", *_BUFFERED, "processes")
]


def _is_number(kind: Any) -> bool:
    """Whether a field is one integer, whatever else is declared of it."""
    return (get_args(kind)[0] if get_origin(kind) is Annotated else kind) in (int, Int | None)


_NUMBERS = [each.name for each in msgspec.structs.fields(SystemRecord) if _is_number(each.type)]
_PRESSURES = [each.name for each in msgspec.structs.fields(SystemRecord) if each.name.endswith("pressure_us")]


class SampledProcess(msgspec.Struct, frozen=True):
    """A process of the command; `samples` has `SAMPLE_DTYPE`.

    `pid` is what the process itself sees, `host_pid` what its sampler and the drivers do. `switches`: context
    switches of its main thread so far, voluntary and involuntary; `run_delay_ns`: how long that was ready to
    run without a CPU, so far; `pool_ns`: how long one of its other threads had none, at least, and how long
    one ran or had none; `affinity`: since when it may run on which CPUs; `memory_nodes`: which nodes' memory.
    """

    pid: int
    host_pid: int
    start_ns: int
    name: str
    samples: npt.NDArray[Any]
    switches: tuple[Series, Series] | None = None
    run_delay_ns: Series | None = None
    swap_bytes: Series | None = None
    affinity: Sequence[tuple[int, frozenset[int]]] = ()
    memory_nodes: Sequence[tuple[int, frozenset[int]]] = ()
    number: int = -1  # in the sampler's records
    pool_ns: tuple[Series, Series] | None = None

    def series(self, field: str) -> Series | None:
        """A column of the samples; None where the kernel did not give it throughout."""
        values = self.samples[field]
        if not len(values) or (values < 0).any():
            return None
        return Series(self.samples["time_ns"], values.astype(np.float64))


class SampledDevice(msgspec.Struct, frozen=True):
    """An accelerator or an instance of one. `users`: (ns, pid, bytes or None), None if never known."""

    about: DeviceRecord
    series: dict[str, Series]
    users: list[tuple[int, int, int | None]] | None


class Host(msgspec.Struct, frozen=True):
    """The host's figures. Rates belong to the second before their time; counters grow; NaN is unknown."""

    time_ns: Times
    cpus: list[int]
    busy: Floats  # a row for each time, a column for each of `cpus`: 0 to 1
    iowait: Floats
    figures: dict[str, Series]
    # By control group: periods of its CPU quota in which it ran, and those that held it back.
    quotas: dict[str, tuple[Series, Series]] = {}
    calibration_ns: Series | None = None  # CPU ns of the sampler's fixed piece of work


class Telemetry(msgspec.Struct, frozen=True):
    """All that one sidecar sampled."""

    sampler: SamplerRecord
    processes: list[SampledProcess]
    devices: list[SampledDevice]
    host: Host
    unavailable: list[Unavailable]
    problems: list[Problem]
    ended: bool
    first_ns: int
    last_ns: int
    damage: list[str] = []
    memory: list[MemoryRecord] = []
    looked_ns: list[int] = []  # when, of each of `memory`
    killed_by: str = ""  # the signal that the launcher saw end it

    def process_of(self, process: Process) -> SampledProcess | None:
        """What was sampled of `process`; None if nothing. A pid may have come again: its start decides.

        Two PID namespaces may have the same pid at once: then it is not known which of the two it is.
        """
        if process.identity.node != self.sampler.node:
            return None
        began_ns = process.began_ns + _START_SLACK_NS
        same = [item for item in self.processes if item.pid == process.pid and item.start_ns <= began_ns]
        living = [item for item in same if len(item.samples) and item.samples["time_ns"][-1] > began_ns]
        if len(living) > 1:
            return None
        return max(living or same, key=lambda item: item.start_ns, default=None)

    def gone_ns(self, sampled: SampledProcess) -> int | None:
        """When a sampled process was missing first; None where it was there to the last."""
        times = sampled.samples["time_ns"]
        # Longer than was asked for, where there are many.
        period_ns = int(np.median(np.diff(times))) if len(times) > 1 else 0
        missing_ns = int(times[-1]) + max(self.sampler.interval_ns, period_ns)
        return missing_ns if missing_ns < self.last_ns else None


def read_telemetry(sidecars: Sequence[Sidecar], clocks: Clocks | None = None) -> list[Telemetry]:
    """Make columns of what each sidecar left; without `clocks` the sidecars' own anchors make the clocks."""
    clocks = clocks or relate_clocks(sidecar.anchors for sidecar in sidecars)
    return [_read(sidecar, clocks.of_domain[clocks.samplers[sidecar.directory.name]]) for sidecar in sidecars]


def _read(sidecar: Sidecar, clock: Clock) -> Telemetry:
    directory, records, sampler = sidecar.directory, sidecar.records, sidecar.sampler
    damage = list(sidecar.damage)
    if (directory / names.BROKEN).exists():
        damage.append("could not write all it sampled")
    damage += _failure(directory / names.LOG)
    systems = records[SystemRecord]
    samples = sidecar.samples
    if samples is None:
        samples = read_rows(directory / names.SAMPLES, SAMPLE_DTYPE, "sample", damage)
    samples["time_ns"] = clock.times_to_session_ns(samples["time_ns"])
    order = np.argsort(samples["process"], kind="stable")
    samples = without_reaped(records[ProcessRecord], samples[order])
    counts = [name for name in names.SCHEDULING if name not in names.LISTED]
    scheduling = {name: by_process(systems, name, clock) for name in counts}
    lists = [listed(systems, name, clock) for name in names.LISTED]
    times = [clock.to_session_ns(record.clock[0]) for record in (sampler, *systems)]
    return Telemetry(
        sampler=sampler,
        processes=[_process(record, samples, scheduling, lists, clock) for record in records[ProcessRecord]],
        devices=[_device(record, records[GpuRecord], clock) for record in records[DeviceRecord]],
        host=_host(systems, clock),
        unavailable=records[Unavailable],
        problems=records[Problem],
        ended=bool(records[SamplerEnd]),
        first_ns=min(times),
        last_ns=max(times),
        damage=damage,
        memory=records[MemoryRecord],
        looked_ns=[clock.to_session_ns(record.mono_ns) for record in records[MemoryRecord]],
        killed_by=_text(directory / names.KILLED).strip(),
    )


def _failure(log: Path) -> list[str]:
    """Why the sampler ended before its time, as it wrote itself."""
    time_and_error = _text(log).split(maxsplit=1)
    return [f"its sampler failed: {time_and_error[1].strip()}"] if len(time_and_error) == 2 else []


def _text(path: Path) -> str:
    try:
        return read_whole(path).decode(errors="replace")
    except OSError:
        return ""


def _process(
    record: ProcessRecord,
    samples: npt.NDArray[Any],
    scheduling: dict[str, dict[int, list[Series]]],
    lists: list[Lists],
    clock: Clock,
) -> SampledProcess:
    first, last = np.searchsorted(samples["process"], [record.number, record.number + 1])
    own_of = {name: series.get(record.number) for name, series in scheduling.items()}
    switches, pools = ((own[0], own[1]) if own else None for own in (own_of["switches"], own_of["pool_ns"]))
    delays, swaps = (own[0] if own else None for own in (own_of["run_delay_ns"], own_of["swap_bytes"]))
    return SampledProcess(
        pid=record.pid if record.own_pid is None else record.own_pid,
        host_pid=record.pid,
        start_ns=clock.to_session_ns(record.start_ns),
        name=record.name,
        samples=samples[first:last],
        switches=switches,
        run_delay_ns=delays,
        swap_bytes=swaps,
        affinity=lists[0].get(record.number, []),
        memory_nodes=lists[1].get(record.number, []),
        number=record.number,
        pool_ns=pools,
    )


def _device(about: DeviceRecord, records: list[GpuRecord], clock: Clock) -> SampledDevice:
    own = [record for record in records if record.device == about.device]
    times = clock.times_to_session_ns([record.mono_ns for record in own])
    series = _known_series(times, {name: [getattr(record, name) for record in own] for name in _GAUGES})
    for name in _BUFFERED:
        pairs = [pair for record in own for pair in sorted(getattr(record, name))]
        if pairs:
            stamps = restamp_one(clock, np.array([stamp for stamp, _ in pairs], dtype=np.int64) * 1000)
            order = np.argsort(stamps, kind="stable")
            values = np.array([value for _, value in pairs], dtype=np.float64)
            series[name] = Series(stamps[order], values[order])
    asked = [
        (time_ns, record.processes)
        for time_ns, record in zip(times.tolist(), own, strict=True)
        if record.processes is not None
    ]
    users = [(time_ns, pid, size) for time_ns, pairs in asked for pid, size in pairs]
    return SampledDevice(about, series, users if asked else None)


def _host(records: list[SystemRecord], clock: Clock) -> Host:
    times = clock.times_to_session_ns([record.clock[0] for record in records])
    cpus = sorted({int(cpu) for record in records for cpu in record.cpus if cpu.isdecimal()})
    ticks = np.full((len(records), len(cpus), 3), np.nan)
    for row, record in enumerate(records):
        for column, cpu in enumerate(cpus):
            if str(cpu) in record.cpus:
                ticks[row, column] = record.cpus[str(cpu)]
    total = ticks.sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = ticks / total[:, :, np.newaxis]
    figures: dict[str, Callable[[SystemRecord], float | None]] = {
        "disk_read_bytes": lambda record: _sum(record.disks, 0),
        "disk_write_bytes": lambda record: _sum(record.disks, 1),
        "net_received_bytes": lambda record: _sum(record.net, 0),
        "net_sent_bytes": lambda record: _sum(record.net, 1),
        "stolen_share": _stolen_share,
        "refaulted_file_bytes": lambda record: record.refaulted_bytes and record.refaulted_bytes[0],
        "swap_in_bytes": lambda record: record.refaulted_bytes and record.refaulted_bytes[1],
    }
    columns = {name: list(map(read, records)) for name, read in figures.items()}
    columns |= {name: [getattr(record, name).get("some") for record in records] for name in _PRESSURES}
    columns |= {name: [getattr(record, name) for record in records] for name in _NUMBERS}
    memory = sorted({name for record in records for name in record.memory})
    columns |= {f"memory_{name}": [record.memory.get(name) for record in records] for name in memory}
    series = _known_series(times, columns)
    taken = [pair for record in records for pair in record.calibration_ns]
    calibration = None
    if taken:
        mono_ns, cpu_ns = np.array(taken, dtype=np.int64).T
        calibration = Series(clock.times_to_session_ns(mono_ns), cpu_ns.astype(np.float64))
    quotas = _quotas(records, times)
    return Host(times, cpus, shares[:, :, 0], shares[:, :, 1], series, quotas, calibration)


def _stolen_share(record: SystemRecord) -> float | None:
    """Return the share, 0 to 1, of the CPUs' busy time that the hypervisor gave to others."""
    busy = sum(ticks[0] for ticks in record.cpus.values())
    if record.stolen_ticks is None or not record.cpus:
        return None
    return min(max(record.stolen_ticks / busy, 0.0), 1.0) if busy > 0 else 0.0


def _quotas(records: list[SystemRecord], times: Times) -> dict[str, tuple[Series, Series]]:
    """The account of each group that has had a quota."""
    quotas = {}
    for group in sorted({group for record in records for group in record.cgroup_quotas}):
        pairs = [record.cgroup_quotas.get(group) for record in records]
        known = np.array([pair is not None for pair in pairs])
        counts = np.array([pair for pair in pairs if pair is not None])
        if counts[-1, 0]:
            periods, held_back = counts.astype(np.float64).T
            quotas[group] = Series(times[known], periods), Series(times[known], held_back)
    return quotas


def _known_series(times: Times, values: dict[str, list[float | None]]) -> dict[str, Series]:
    """The figures that are known at any of the times."""
    columns = {name: np.array(column, dtype=np.float64) for name, column in values.items()}  # None: NaN
    known = {name: ~np.isnan(column) for name, column in columns.items()}
    return {name: Series(times[here], columns[name][here]) for name, here in known.items() if here.any()}


def _sum(rows: dict[str, Any], column: int) -> float | None:
    return float(sum(row[column] for row in rows.values())) if rows else None
