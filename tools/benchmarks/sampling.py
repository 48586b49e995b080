"""What one look at a training process and its workers takes: the sidecar's way, and psutil's.

``tools/bench sampling``: nine resting processes, as in the telemetry's own figures. It is why the loop of the
sidecar is written by hand (docs/architecture.md).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psutil
from tools.benchmarks.machine import machine
from tools.benchmarks.tables import table

from iotrace.launch.telemetry.procfs import read_stat
from iotrace.launch.telemetry.system import System
from iotrace.launch.telemetry.tree import Member

_WORKERS = 8
_ROUNDS, _LOOKS = 15, 20
_PROGRAM = f"""
import os, sys
children = []
for _ in range({_WORKERS}):
    pid = os.fork()
    if pid == 0:
        sys.stdin.read()
        os._exit(0)
    children.append(pid)
print(*children, flush=True)
sys.stdin.read()
"""


def main() -> None:
    """Print the CPU microseconds of one look by each way; the least of several medians."""
    child = subprocess.Popen(
        [sys.executable, "-IS", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    pids = [child.pid, *map(int, child.stdout.readline().split())]
    ways = {
        "processes, sidecar: open files and pread": _by_hand(pids),
        "processes, psutil: oneshot, the same figures": _by_psutil(pids),
        "finding them, psutil: children(recursive=True)": lambda: psutil.Process(child.pid).children(True),
        "host, sidecar: CPUs, memory, disks, network, pressure": System().read,
        "host, psutil: the same without pressure": _host_by_psutil,
    }
    rows = [[name, f"{_cpu_us(look):.0f}"] for name, look in ways.items()]
    child.stdin.close()
    child.wait()
    about = machine()
    print(f"{about['date']}, {about['cpu']}, Python {about['python']}, psutil {psutil.__version__}, "
          f"{len(pids)} processes")  # fmt: skip
    print("\n".join(table(["one look", "CPU us"], rows)))


def _cpu_us(look: Callable[[], object]) -> float:
    def once_us() -> float:
        before_ns = time.process_time_ns()
        look()
        return (time.process_time_ns() - before_ns) / 1000

    return min(sorted(once_us() for _ in range(_LOOKS))[_LOOKS // 2] for _ in range(_ROUNDS))


def _by_hand(pids: list[int]) -> Callable[[], object]:
    members = []
    for number, pid in enumerate(pids):
        members.append(Member(number, pid, read_stat(pid), ""))
    return lambda: [member.sample() for member in members]


def _by_psutil(pids: list[int]) -> Callable[[], object]:
    processes = [psutil.Process(pid) for pid in pids]

    def look() -> object:
        found = []
        for process in processes:
            with process.oneshot():
                found.append(
                    (
                        process.status(),
                        process.num_threads(),
                        process.cpu_times(),
                        process.memory_info().rss,
                        process.io_counters(),
                    )
                )
        return found

    return look


def _host_by_psutil() -> object:
    return (
        psutil.cpu_times(percpu=True),
        psutil.virtual_memory(),
        psutil.disk_io_counters(perdisk=True),
        psutil.net_io_counters(pernic=True),
    )


if __name__ == "__main__":
    main()
