"""Read the host's figures: CPUs, memory, disks, network, pressure, and the job's cgroup."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from glob import glob

from iotrace.launch.telemetry import Record
from iotrace.launch.telemetry.procfs import (
    PAGE_BYTES,
    ProcFile,
    groups_v1,
    groups_v2,
    list_groups,
    memory_use,
    parse_cpus,
    parse_disks,
    parse_memory,
    parse_net,
    parse_pressure,
    parse_quota,
    parse_refaults,
    parse_rollup,
    read_file,
    read_own,
)

_PRESSURES = ("cpu", "memory", "io")
SHORTEST_REST_NS = 10_000_000_000
_SETTLED_NS = 2_000_000_000  # after processes were added there is a look at all of them
_REST_OF_MORE = 100
_REST = 1000  # times what reading memory cost: 0.1 % of a core


class System:
    """Reads the host's figures. Each is timed, and absent where the kernel or a container hides it."""

    def __init__(self) -> None:
        self._figures: list[tuple[str, Callable[[], object]]] = []
        self._cpus_before: dict[int, tuple[int, int, int, int]] = {}
        self._stolen_ticks: int | None = None
        self._disks = {path.split("/")[3] for path in glob("/sys/block/*/device")}
        self._add("cpus", "/proc/stat", self._cpus)
        self._figures.append(("stolen_ticks", lambda: self._stolen_ticks))
        self._add("memory", "/proc/meminfo", lambda file: parse_memory(file.read_all()))
        self._add("disks", "/proc/diskstats", lambda file: parse_disks(file.read_all(), self._disks))
        self._add("net", "/proc/net/dev", lambda file: parse_net(file.read_all()))
        self._add("tcp_retransmits", "/proc/net/snmp", lambda file: _retransmits(file.read_all()))
        for name in _PRESSURES:
            self._add(f"{name}_pressure_us", f"/proc/pressure/{name}", _pressure)
        self._add_cgroup()

    def read(self) -> tuple[Record, dict[str, int]]:
        """Return the figures by name, and the ns that reading each took."""
        figures: Record = {}
        costs = {}
        for name, read in self._figures:
            before_ns = time.perf_counter_ns()
            with suppress(OSError, ValueError, IndexError):  # unknown this time
                value = read()
                if value is not None:
                    figures[name] = value
            costs[name] = time.perf_counter_ns() - before_ns
        return figures, costs

    def _add(self, name: str, path: str, parse: Callable[[ProcFile], object]) -> None:
        try:
            file = ProcFile(path)
        except OSError:
            return
        self._figures.append((name, lambda: parse(file)))

    def _add_cgroup(self) -> None:
        texts = read_own()
        own = groups_v2(*texts)
        self._add_quotas([*groups_v1(*texts, "cpu"), *own])
        for directory in (*groups_v1(*texts, "memory")[:1], *own[:1]):
            self._add("refaulted_bytes", f"{directory}/memory.stat", _refaulted)
        # The kernel's root group has no type: it is the whole host again.
        if not own or not os.path.exists(f"{own[0]}/cgroup.type"):
            return
        for name in _PRESSURES:
            self._add(f"cgroup_{name}_pressure_us", f"{own[0]}/{name}.pressure", _pressure)
        self._add("cgroup_memory_bytes", f"{own[0]}/memory.current", lambda file: int(file.read()))

    def _add_quotas(self, directories: list[str]) -> None:
        """A quota of any group above throttles the job, too: job managers set it on a parent."""
        files = {}
        for directory in directories:
            with suppress(OSError, ValueError):
                file = ProcFile(f"{directory}/cpu.stat")
                if parse_quota(file.read()) is not None:  # else version 2 without its CPU controller
                    files[directory] = file
        if files:
            self._figures.append(("cgroup_quotas", lambda: _quotas(files)))

    def _cpus(self, file: ProcFile) -> dict[int, tuple[int, int, int]]:
        """Return busy, iowait and idle ticks since the last call, of the CPUs that the job may use."""
        now, before = parse_cpus(file.read_all()), self._cpus_before
        self._cpus_before = now
        both = [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu in now and cpu in before]
        if both:
            self._stolen_ticks = sum(now[cpu][3] - before[cpu][3] for cpu in both)
        return {
            cpu: (now[cpu][0] - before[cpu][0], now[cpu][1] - before[cpu][1], now[cpu][2] - before[cpu][2])
            for cpu in both
        }


def _retransmits(data: bytes) -> int:
    """Return the TCP segments that were sent again so far, of two lines: names, and numbers."""
    names, numbers = (line.split() for line in data.splitlines() if line.startswith(b"Tcp:"))
    return int(numbers[names.index(b"RetransSegs")])


class Memory:
    """Reads, rarely, what may run out: memory that is used for good, descriptors, mappings, /dev/shm.

    The kernel adds up a process's pages under its lock of mappings, 14 ms for each GiB: a turn rests for a
    thousand times as long as it took, and never less than `SHORTEST_REST_NS`. Where there are more processes
    than ever it rests for less, at least a hundred times as long: short runs are seen with their workers.
    """

    def __init__(self) -> None:
        self._groups = list_groups(read_own(), "memory")
        self._next_ns = time.monotonic_ns() + SHORTEST_REST_NS
        with suppress(OSError, ValueError):
            self._most_mappings = int(read_file("/proc/sys/vm/max_map_count"))

    _most_mappings = -1
    _most_processes = 0
    _soonest_ns = 0

    def read(self, processes: Iterable[tuple[int, int]]) -> Record | None:
        """Return a record of the `processes`, each a number and a pid; None before it is time."""
        now_ns, processes = time.monotonic_ns(), list(processes)
        if len(processes) > self._most_processes:
            self._most_processes = len(processes)
            self._next_ns = min(self._next_ns, max(now_ns + _SETTLED_NS, self._soonest_ns))
        if now_ns < self._next_ns:
            return None
        cpu_ns = time.thread_time_ns()
        limited = [use for use in map(memory_use, self._groups) if use is not None]
        uses = [(used, limit) for used, limit in limited if used is not None]
        record: Record = {
            "type": "memory",
            "mono_ns": now_ns,
            "group": min(uses, key=lambda use: use[1] - use[0], default=None),
            "most_mappings": self._most_mappings,
            "processes": [row for number, pid in processes if (row := _process(number, pid)) is not None],
        }
        with suppress(OSError, ValueError):
            record["available_bytes"] = parse_memory(read_file("/proc/meminfo"))["available_bytes"]
        with suppress(OSError):
            shm = os.statvfs("/dev/shm")
            record["shm"] = ((shm.f_blocks - shm.f_bfree) * shm.f_frsize, shm.f_blocks * shm.f_frsize)
        took_ns, now_ns = time.thread_time_ns() - cpu_ns, time.monotonic_ns()
        self._next_ns = now_ns + max(SHORTEST_REST_NS, _REST * took_ns)
        self._soonest_ns = now_ns + _REST_OF_MORE * took_ns
        return record


def _process(number: int, pid: int) -> tuple[int, ...] | None:
    """Return its number and the fields of a `memory` record's process; -1: unknown."""
    try:
        sizes = parse_rollup(read_file(f"/proc/{pid}/smaps_rollup"))
    except (OSError, ValueError, IndexError, KeyError):
        return None  # it has ended, is another user's, or the kernel is older than 4.14
    descriptors = limit = mappings = -1
    with suppress(OSError, ValueError, IndexError):
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        row = next(
            line for line in read_file(f"/proc/{pid}/limits").splitlines() if line.startswith(b"Max open")
        )
        limit = int(row.split()[3])
        mappings = read_file(f"/proc/{pid}/maps").count(b"\n")
    return number, *sizes, descriptors, limit, mappings


def numa_nodes(root: str = "/sys/devices/system/node") -> list[Record]:
    """Return the host's NUMA nodes: CPUs, memory, how far each of them is; empty where they are hidden."""
    nodes: list[Record] = []
    for path in sorted(glob(f"{root}/node[0-9]*"), key=lambda path: int(path.rpartition("node")[2])):
        node: Record = {"node": int(path.rpartition("node")[2])}
        with suppress(OSError, ValueError, IndexError):
            node["cpus"] = read_file(f"{path}/cpulist").decode().strip()
            node["distances"] = [int(text) for text in read_file(f"{path}/distance").split()]
            total = next(line for line in read_file(f"{path}/meminfo").splitlines() if b"MemTotal:" in line)
            node["memory_bytes"] = int(total.split()[3]) * 1024
        nodes.append(node)
    return nodes


def cores_are_shared(path: str = "/sys/devices/system/cpu/smt/active") -> bool | None:
    """Return whether CPUs share cores (SMT, hyper-threads); None: the kernel does not say."""
    with suppress(OSError):
        return {b"0": False, b"1": True}.get(read_file(path).strip())
    return None


def _refaulted(file: ProcFile) -> list[int] | None:
    pages = parse_refaults(file.read_all())
    return None if pages is None else [count * PAGE_BYTES for count in pages]


def _pressure(file: ProcFile) -> dict[str, int]:
    return parse_pressure(file.read())


def _quotas(files: dict[str, ProcFile]) -> dict[str, tuple[int, int]]:
    quotas = {name: parse_quota(file.read()) for name, file in files.items()}
    return {name: counts for name, counts in quotas.items() if counts is not None}
