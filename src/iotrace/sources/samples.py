"""What a sidecar writes (docs/session-format.md), as structs and a dtype, and the reader of its records."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.reading import entries
from iotrace.sources.clocks.anchors import AnchorSource
from iotrace.sources.clocks.session_clock import Clock, Times
from iotrace.sources.records import Int
from iotrace.sources.rows import each_record

_MOST_CPUS = 1 << 14
SAMPLE_DTYPE = np.dtype([(name, f"<{code}") for name, code in names.SAMPLE_FIELDS.items()])

# Whatever a damaged line holds, its figures are finite.
Float = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]

Floats = npt.NDArray[np.float64]


def said(meaning: str) -> msgspec.Meta:
    """Declare what a field means, for the tables of docs/session-format.md."""
    return msgspec.Meta(description=meaning)


class Series(msgspec.Struct, frozen=True):
    """A figure over time, in order of time."""

    time_ns: Times
    value: Floats


class SidecarRecord(msgspec.Struct):
    """A line of a sidecar's records.jsonl, by its tag."""


class NumaNode(msgspec.Struct, frozen=True):
    """A NUMA node of the host: its CPUs (``0-3,8``), its memory, how far each node is (10: itself)."""

    node: Int
    cpus: str = ""
    memory_bytes: Int | None = None
    distances: list[Int] = []


class SamplerRecord(SidecarRecord, tag="sampler"):
    """Who sampled, and how often."""

    pid: Int
    node: str
    clock: tuple[Int, Int, Int]
    interval_ns: Int
    host: str = ""
    boot_id: str = ""
    calibration: str = ""
    cpus_online: Int | None = None
    shared_cores: bool | None = None
    mounts: list[tuple[str, str]] = []  # where, and the type; of several at one point the last counts
    nodes: list[NumaNode] = []


class ProcessRecord(SidecarRecord, tag="process"):
    number: Int
    pid: Int
    start_ns: Int
    ppid: Int = 0
    own_pid: Int | None = None
    name: str = ""


class SystemRecord(SidecarRecord, tag="system"):
    """The host once a second; what the kernel or a container hides is absent."""

    clock: Annotated[
        tuple[Int, Int, Int],
        said("an anchor, see [Clocks](#clocks); its first number is the time of the record"),
    ]
    sampler_cpu_ns: Annotated[Int, said("CPU time of the sidecar so far")]
    cpus: Annotated[
        dict[str, tuple[Int, Int, Int]],
        said(
            "by number, of the CPUs that the sidecar may run on: busy, iowait and idle ticks since the last "
            "record; stolen time is busy"
        ),
    ] = {}
    stolen_ticks: Annotated[
        Int | None,
        said("of the busy ticks of `cpus`, those in which a hypervisor gave the CPU to others (`steal`)"),
    ] = None
    memory: Annotated[
        dict[str, Int],
        said("`total_bytes`, `available_bytes`, `cached_bytes`, `dirty_bytes`, `writeback_bytes`"),
    ] = {}
    disks: Annotated[
        dict[str, tuple[Int, Int, Int]],
        said("by whole disk: bytes read, bytes written, ms busy, so far"),
    ] = {}
    net: Annotated[
        dict[str, tuple[Int, Int]],
        said("by interface, the loopback left out: bytes received, bytes sent, so far"),
    ] = {}
    cpu_pressure_us: Annotated[dict[str, Int], said("`some` and `full` of `/proc/pressure`, so far")] = {}
    memory_pressure_us: Annotated[
        dict[str, Int],
        said("`some` and `full` of `/proc/pressure`, so far"),
    ] = {}
    io_pressure_us: Annotated[dict[str, Int], said("`some` and `full` of `/proc/pressure`, so far")] = {}
    cgroup_cpu_pressure_us: Annotated[
        dict[str, Int],
        said("the same of the sidecar's cgroup (version 2, not the root)"),
    ] = {}
    cgroup_memory_pressure_us: Annotated[
        dict[str, Int],
        said("the same of the sidecar's cgroup (version 2, not the root)"),
    ] = {}
    cgroup_io_pressure_us: Annotated[
        dict[str, Int],
        said("the same of the sidecar's cgroup (version 2, not the root)"),
    ] = {}
    switches: Annotated[
        list[tuple[Int, Int, Int]],
        said(
            "for each process: its number, voluntary and involuntary context switches of its main thread so "
            "far; `[]` where it rests"
        ),
    ] = []
    affinity: Annotated[
        list[tuple[Int, str]],
        said(
            "for each process whose list has changed, or is read first: its number, the CPUs that its main "
            "thread may run on (`0-3,8`)"
        ),
    ] = []
    memory_nodes: Annotated[
        list[tuple[Int, str]],
        said("likewise the NUMA nodes that it may have memory of (`Mems_allowed_list`)"),
    ] = []
    swap_bytes: Annotated[
        list[tuple[Int, Int]],
        said("for each process: its number, its bytes in swap"),
    ] = []
    run_delay_ns: Annotated[
        list[tuple[Int, Int]],
        said(
            "for each process: its number, how long its main thread was ready to run without a CPU, so far "
            "(`/proc/PID/schedstat`)"
        ),
    ] = []
    pool_ns: Annotated[
        list[tuple[Int, Int, Int]],
        said(
            "for each process: its number; then two values of its other threads: how long one had no CPU "
            "though it was ready, and how long one ran or had none. Each second counts the thread for which "
            "the value grew most. For more than 128 threads it is not read, and does not change"
        ),
    ] = []
    calibration_ns: Annotated[
        list[tuple[Int, Int]],
        said(
            "for each time that the sidecar did its fixed piece of work (inflating 64 KiB of text) since "
            "the last record: when, and the CPU time that it took. It rests for 500 times as long; `[]` "
            "before the command's first process is found"
        ),
    ] = []
    cgroup_quotas: Annotated[
        dict[str, tuple[Int, Int]],
        said(
            "by directory, of the sidecar's cgroup and those above it (version 1 and 2): periods of its CPU "
            "quota in which it ran, and those in which it was held back, so far; zeros without a quota"
        ),
    ] = {}
    tcp_retransmits: Annotated[Int | None, said("TCP segments that the host sent again, so far")] = None
    refaulted_bytes: Annotated[
        tuple[Int, Int] | None,
        said(
            "of the sidecar's cgroup and those below it: bytes of files, and of other memory, that were "
            "read again after the kernel had dropped them for lack of memory, so far "
            "(`workingset_refault_…` of `memory.stat`)"
        ),
    ] = None


class MemoryRecord(SidecarRecord, tag="memory"):
    """What may run out, each 10 s or less often. `group`: used for good, and the limit of the tightest group.

    `processes`: number, anonymous, proportional, private and dirty, shared bytes; descriptors, their soft
    limit, mappings (-1: unknown). `shm`: bytes used and in all.
    """

    mono_ns: Int
    group: tuple[Int, Int] | None = None
    available_bytes: Int | None = None
    most_mappings: Int = -1
    shm: tuple[Int, Int] | None = None
    processes: list[tuple[Int, Int, Int, Int, Int, Int, Int, Int]] = []


class DeviceRecord(SidecarRecord, tag="device"):
    """A device was found; the other records name it by the number `device`."""

    device: Int
    index: Int
    library: str = ""
    instance: Int | None = None
    uuid: str = ""
    name: str = ""
    memory_total_bytes: Int | None = None
    numa_node: Int | None = None


class GpuRecord(SidecarRecord, tag="gpu"):
    """A device's figures at one instant; buffered samples are pairs of us of CLOCK_REALTIME and value."""

    device: Int
    mono_ns: Int
    util_pct: Float | None = None
    memory_util_pct: Float | None = None
    memory_bytes: Float | None = None
    power_w: Float | None = None
    energy_j: Float | None = None
    sm_clock_mhz: Float | None = None
    memory_clock_mhz: Float | None = None
    temperature_c: Float | None = None
    clock_reasons: Int | None = None
    pcie_sent_bytes_per_s: Float | None = None
    pcie_received_bytes_per_s: Float | None = None
    util_samples: list[tuple[Int, Float]] = []
    memory_util_samples: list[tuple[Int, Float]] = []
    power_samples: list[tuple[Int, Float]] = []
    processes: list[tuple[Int, Int | None]] | None = None


class Unavailable(SidecarRecord, tag="unavailable"):
    """A vendor's library that could not be used."""

    library: str
    why: str


class Problem(SidecarRecord, tag="problem"):
    """A figure of a device, or a whole one, that is unknown; recorded once."""

    figure: str
    why: str
    device: Int | None = None


class ClockRecord(SidecarRecord, tag="clock"):
    """Datagrams exchanged with the sidecar in the directory `reference`, each four times; or why none."""

    reference: str
    exchanges: list[tuple[Int, Int, Int, Int]] = []
    why: str = ""


class SamplerEnd(SidecarRecord, tag="end"):
    mono_ns: Int


class Sidecar(msgspec.Struct, frozen=True):
    """The records of one sidecar, by type; `damage` says what was lost of them.

    `samples` are its samples as they lie in the file, in monotonic time; None: all of its file.
    """

    directory: Path
    records: dict[type, list[Any]]
    damage: list[str]
    samples: npt.NDArray[Any] | None = None

    @property
    def sampler(self) -> SamplerRecord:
        record: SamplerRecord = self.records[SamplerRecord][0]
        return record

    @property
    def anchors(self) -> AnchorSource:
        who = self.sampler
        anchors = [record.clock for record in (who, *self.records[SystemRecord])]
        source = AnchorSource(who.node, who.host, who.boot_id, anchors, sampler=self.directory.name)
        for record in self.records[ClockRecord]:
            source.reference = record.reference
            source.exchanges += record.exchanges
            source.why = record.why
        return source


def read_sidecars(session: Path, losses: list[str] | None = None) -> list[Sidecar]:
    """Read the records of a session's sidecars, by directory.

    One that does not say who it is, is left out; `losses` tell of it where it recorded something.
    """
    sidecars = []
    for directory in entries(session / names.TELEMETRY):
        damage: list[str] = []
        records: dict[type, list[Any]] = defaultdict(list)
        for record in each_record(directory / names.RECORDS, SidecarRecord, damage):
            records[type(record)].append(record)
        if records[SamplerRecord]:
            sidecars.append(Sidecar(directory, records, damage))
        elif losses is not None and (damage or any(records.values())):
            losses.append(
                f"the sampler of {directory.name} does not say who it is: its samples were left out"
            )
    return sidecars


def by_process(records: list[SystemRecord], name: str, clock: Clock) -> dict[int, list[Series]]:
    """The figures of one list of `names.SCHEDULING` over time, by number of the process."""
    rows_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for record in records:
        for number, *values in getattr(record, name):
            rows_of[number].append((record.clock[0], *values))
    series = {}
    for number, rows in rows_of.items():
        mono_ns, *columns = np.array(rows, dtype=np.int64).T
        times = clock.times_to_session_ns(mono_ns)
        series[number] = [Series(times, column.astype(np.float64)) for column in columns]
    return series


Lists = dict[int, list[tuple[int, frozenset[int]]]]


def listed(records: list[SystemRecord], name: str, clock: Clock) -> Lists:
    """Since when each process may use what one of `names.LISTED` lists, by its number."""
    lists: dict[int, list[tuple[int, frozenset[int]]]] = defaultdict(list)
    for record in records:
        for number, text in getattr(record, name):
            cpus = parse_cpus(text)
            if cpus:
                lists[number].append((clock.to_session_ns(record.clock[0]), cpus))
    return lists


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of CPUs as the kernel writes it (``0-3,8``); empty where it is none."""
    cpus: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(last or first) < _MOST_CPUS):
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
