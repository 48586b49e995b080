"""What the whole host does: CPUs, memory, disks, network, pressure, and the job's cgroup."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from iotrace.launch.telemetry.procfs import (
    OpenFile,
    cgroup_directory,
    cgroup_directory_v1,
    parse_cpus,
    parse_disks,
    parse_memory,
    parse_net,
    parse_pressure,
    parse_throttled,
)

_PRESSURES = ("cpu", "memory", "io")


class System:
    """Reads the host's figures. Each is timed, and absent where the kernel or a container hides it."""

    def __init__(self) -> None:
        self._figures: list[tuple[str, Callable[[], Any]]] = []
        self._cpus_before: dict[int, tuple[int, int, int]] = {}
        self._disks = {name for name in _listing("/sys/block") if os.path.exists(f"/sys/block/{name}/device")}
        self._add("cpus", "/proc/stat", self._cpus)
        self._add("memory", "/proc/meminfo", lambda file: parse_memory(file.read_all()))
        self._add("disks", "/proc/diskstats", lambda file: parse_disks(file.read_all(), self._disks))
        self._add("net", "/proc/net/dev", lambda file: parse_net(file.read_all()))
        for name in _PRESSURES:
            self._add(f"{name}_pressure_us", f"/proc/pressure/{name}", _pressure)
        self._add_cgroup()

    def read(self) -> dict[str, Any]:
        """The figures by name; ``cost_ns`` holds what reading each took."""
        found: dict[str, Any] = {}
        costs = {}
        for name, read in self._figures:
            before_ns = time.perf_counter_ns()
            try:
                value = read()
                if value is not None:
                    found[name] = value
            except (OSError, ValueError, IndexError):  # unknown this time
                pass
            costs[name] = time.perf_counter_ns() - before_ns
        return {**found, "cost_ns": costs}

    def _add(self, name: str, path: str, parse: Callable[[OpenFile], Any]) -> None:
        try:
            file = OpenFile(path)
        except OSError:
            return
        self._figures.append((name, lambda: parse(file)))

    def _add_cgroup(self) -> None:
        try:
            with open("/proc/self/cgroup") as cgroups, open("/proc/self/mounts") as mounts:
                groups, mounted = cgroups.read(), mounts.read()
        except (OSError, UnicodeDecodeError):
            return
        self._add_throttled(cgroup_directory_v1(groups, mounted, "cpu"))
        directory = cgroup_directory(groups, mounted)
        # The kernel's root group has no type: it is the whole host again.
        if directory is None or not os.path.exists(f"{directory}/cgroup.type"):
            return
        for name in _PRESSURES:
            self._add(f"cgroup_{name}_pressure_us", f"{directory}/{name}.pressure", _pressure)
        self._add("cgroup_memory_bytes", f"{directory}/memory.current", lambda file: int(file.read()))
        self._add_throttled(directory)

    def _add_throttled(self, directory: str | None) -> None:
        if directory is not None:
            path = f"{directory}/cpu.stat"
            self._add("cgroup_throttled_us", path, lambda file: parse_throttled(file.read_all()))

    def _cpus(self, file: OpenFile) -> dict[int, tuple[int, int, int]]:
        """Busy, iowait and idle ticks since the last time, of the CPUs that the job may use."""
        now, before = parse_cpus(file.read_all()), self._cpus_before
        self._cpus_before = now
        return {
            cpu: (now[cpu][0] - before[cpu][0], now[cpu][1] - before[cpu][1], now[cpu][2] - before[cpu][2])
            for cpu in sorted(os.sched_getaffinity(0))
            if cpu in now and cpu in before
        }


def _pressure(file: OpenFile) -> dict[str, int]:
    return parse_pressure(file.read())


def _listing(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
