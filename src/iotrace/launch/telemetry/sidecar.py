"""Run the sidecar: sample until the command's last process on this host has ended.

It leads a session, so no key on the terminal reaches it; it outlives a killed launcher by no more than the
command does, and nothing of it runs in the program. Its standard input is a pipe that the launcher holds
open; when that closes, the launcher has seen the command's end or has died.

A fixed piece of work: the CPU time that it takes shows how fast the CPUs were while the command ran.

A virtual machine's CPUs change speed with their host's clocks, and with what their sibling threads do: the
same decode took up to 24 % more CPU time from one run to the next. Inflating text that fits into the second
level cache follows that best, of what was tried.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import select
import signal
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from iotrace.launch.telemetry import Record, amd, level_zero, nvml
from iotrace.launch.telemetry.clock_exchange import ClockExchange
from iotrace.launch.telemetry.gpus import Device, DevicePoller, Emit
from iotrace.launch.telemetry.hangs.telling import store, tell_launcher
from iotrace.launch.telemetry.hangs.watch import HangWatch
from iotrace.launch.telemetry.procfs import TICKS_PER_SECOND, mounts_with_files, read_own, read_stat
from iotrace.launch.telemetry.size_limit import SizeLimit
from iotrace.launch.telemetry.system import Memory, System, cores_are_shared, numa_nodes
from iotrace.launch.telemetry.tree import Lists, Tree
from iotrace.session import names
from iotrace.session.append_file import Stream
from iotrace.session.identity import boot_id, clock_anchor

_BYTES = 1 << 16
_REST = 500  # times as long as the piece took: 0.2 % of a core

WORK = f"inflate {_BYTES} bytes, zlib {zlib.ZLIB_RUNTIME_VERSION}"


class Calibration:
    """Does the piece of work now and then, and keeps what it took until it is asked for."""

    def __init__(self) -> None:
        text = "".join(hashlib.sha256(bytes([i & 255, i >> 8])).hexdigest() for i in range(_BYTES // 64))
        self._packed = zlib.compress(text.encode(), 1)
        self._next_ns = 0
        self._taken: list[tuple[int, int]] = []

    def run(self) -> None:
        """Do the work, unless it was done too lately."""
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return
        before_ns = time.thread_time_ns()
        zlib.decompress(self._packed, bufsize=_BYTES)
        cpu_ns = time.thread_time_ns() - before_ns
        self._taken.append((now_ns, cpu_ns))
        self._next_ns = now_ns + _REST * cpu_ns

    def take(self) -> list[tuple[int, int]]:
        """Return what it took since the last call: CLOCK_MONOTONIC and CPU ns of each."""
        taken, self._taken = self._taken, []
        return taken


_SLOW_NS = 1_000_000_000
# How often a command without a process is looked for.
_YOUNG_NS = 200_000_000
# What is read of each process costs more the more there are. After that much CPU time it rests for so many
# times as long: together 0.4 % of a core at most, and the host's figures some 0.1 % more.
_SAMPLE_REST = 500
_SCHEDULING_REST = 1000
_SCAN_REST = 1000
_LONGEST_TURN_NS = 5_000_000_000
_LAST_POLL_S = 0.3
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


_DEVICES: dict[str, Callable[[Emit], list[Device]]] = {
    "NVML": nvml.find,
    "amdsmi": amd.find,
    "Level Zero": level_zero.find,
}


class Sidecar:
    """Samples the processes at each turn, and everything else once a second.

    Turns are `interval_ns` apart, or more where they would cost too much.
    """

    def __init__(self, session: str, directory: str, interval_ns: int, most_bytes: int = 0) -> None:
        self._session = session
        self._directory = directory
        self._interval_ns = interval_ns
        self._records: deque[Record] = deque()  # also filled by the threads that poll devices
        self._samples: list[bytes] = []
        self._record_stream = Stream(f"{directory}/{names.RECORDS}")
        self._sample_stream = Stream(f"{directory}/{names.SAMPLES}")
        self._limit = SizeLimit(session, most_bytes) if most_bytes else None
        self._system = System()
        self._memory = Memory()
        self._calibration = Calibration()
        self._start_ticks = read_stat("self").start_ticks
        self._tree = Tree(session, self._start_ticks)
        self._hangs = HangWatch(self._tree)
        self._poller = DevicePoller(_DEVICES, self._records.append)
        self._clock = ClockExchange(session, directory, self._records.append)
        self._costs = {"scan": 0, "processes": 0}
        self._turns_cpu_ns: deque[int] = deque(maxlen=3)
        self._turn_ns = interval_ns  # until the next turn, as it costs now
        self._rested_ns = {"scan": 0, "scheduling": 0, "pools": 0, "hangs": 0}  # when each may be done again
        self._released = self._deleted = False

    def run(self) -> None:
        """Sample until nothing is left to sample or to write to."""
        self._records.append(self._describe())
        self._flush()  # says who holds the claim
        self._poller.start()
        self._clock.start()
        slow_ns = turn_ns = time.monotonic_ns()
        while True:
            now_ns = time.monotonic_ns()
            slow, turn = now_ns >= slow_ns, now_ns >= turn_ns or self._released
            # A young command's processes are looked for at once: it may end within the second.
            if slow or self._released or not self._tree.members:
                self._scan(self._tree.scan)
            elif now_ns >= self._rested_ns["scan"]:
                self._scan(self._tree.scan_newest, _SCAN_REST)
            if turn:
                self._sample()
                turn_ns = _next(turn_ns, self._turn_ns)
                if self._tree.members:
                    self._calibration.run()
            else:
                self._samples.append(self._tree.sample(new_alone=True))
            if slow:
                self._record_system()
                self._watch_for_hangs()
                slow_ns = _next(slow_ns, _SLOW_NS)
            if self._over():
                break
            wake_ns = min(turn_ns, slow_ns)
            if not self._tree.members:
                wake_ns = min(wake_ns, time.monotonic_ns() + _YOUNG_NS)
            self._wait_until(wake_ns)
        self._clock.measure_last()
        self._poller.stop(_LAST_POLL_S)
        self._record_system()
        self._records.append({"type": "end", "mono_ns": time.monotonic_ns()})
        self._flush()
        self._clock.close()

    def _describe(self) -> Record:
        uname = os.uname()
        return {
            "type": "sampler",
            "pid": os.getpid(),
            "start_ticks": self._start_ticks,
            "node": uname.nodename,
            "host": os.environ.get(names.HOST_VARIABLE) or uname.nodename,
            "boot_id": boot_id(),
            "clock": clock_anchor(),
            "interval_ns": self._interval_ns,
            "ticks_per_second": TICKS_PER_SECOND,
            "cpus": len(os.sched_getaffinity(0)),
            "cpus_online": os.cpu_count(),
            "shared_cores": cores_are_shared(),
            "calibration": WORK,
            "mounts": mounts_with_files(read_own()[1]),
            "nodes": numa_nodes(),
        }

    def _scan(self, scan: Callable[[], list[Record]], rest: int = 0) -> None:
        before_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._records.extend(scan())
        self._costs["scan"] += time.perf_counter_ns() - before_ns
        self._rested_ns["scan"] = time.monotonic_ns() + rest * (time.thread_time_ns() - cpu_ns)

    def _sample(self) -> None:
        before_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._samples.append(self._tree.sample())
        self._costs["processes"] += time.perf_counter_ns() - before_ns
        self._turns_cpu_ns.append(time.thread_time_ns() - cpu_ns)
        # The median: a turn that missed its caches is not what turns cost.
        usual_ns = sorted(self._turns_cpu_ns)[len(self._turns_cpu_ns) // 2]
        self._turn_ns = max(self._interval_ns, min(_LONGEST_TURN_NS, _SAMPLE_REST * usual_ns))

    def _scheduling(self) -> Lists:
        """Return what the kernel says of threads; empty lists while reading it again would cost too much."""
        lists: Lists = {name: [] for name in names.SCHEDULING}
        for what, read in (
            ("scheduling", self._tree.scheduling),
            ("pools", lambda: {"pool_ns": self._tree.pools()}),  # of far more threads
        ):
            if time.monotonic_ns() >= self._rested_ns[what]:
                cpu_ns = time.thread_time_ns()
                lists |= read()
                cost_ns = time.thread_time_ns() - cpu_ns
                self._rested_ns[what] = time.monotonic_ns() + _SCHEDULING_REST * cost_ns
        return lists

    def _watch_for_hangs(self) -> None:
        """Tell of a hang once: on the launcher's standard error, and in a file for `iotrace status`."""
        if time.monotonic_ns() < self._rested_ns["hangs"]:
            return
        cpu_ns = time.thread_time_ns()
        hang = self._hangs.check(time.monotonic_ns())
        if hang is not None:
            hang["clock"] = clock_anchor()
            hang["host"] = os.environ.get(names.HOST_VARIABLE) or os.uname().nodename
            store(self._directory, self._session, hang)
            if hang.get("kind") in ("hung", "computing"):  # of ranks elsewhere a reader judges
                tell_launcher(hang["text"])
        cost_ns = time.thread_time_ns() - cpu_ns
        self._rested_ns["hangs"] = time.monotonic_ns() + _SCHEDULING_REST * cost_ns

    def _record_system(self) -> None:
        """Record the host's figures, the clocks and the sampler's cost; then write everything."""
        figures, costs = self._system.read()
        record = {"type": "system", "clock": clock_anchor(), **figures}
        record["interval_ns"] = self._turn_ns
        record |= self._scheduling()
        record["calibration_ns"] = self._calibration.take()
        record["cost_ns"] = {**costs, **self._costs}
        record["sampler_cpu_ns"] = time.process_time_ns()
        self._records.append(record)
        memory = self._memory.read((each.number, each.pid) for each in self._tree.members.values())
        if memory is not None:
            self._records.append(memory)
        self._costs = dict.fromkeys(self._costs, 0)
        self._poller.check()
        if self._limit is not None:
            self._limit.check({member.launch for member in self._tree.members.values()})
        self._flush()
        self._deleted = not os.path.isdir(self._directory)

    def _flush(self) -> None:
        """Write records before samples: they say whose the samples are."""
        lines = []
        while self._records:
            lines.append(json.dumps(self._records.popleft(), separators=(",", ":")))
        self._record_stream.write("".join(f"{line}\n" for line in lines).encode())
        self._sample_stream.write(b"".join(self._samples))
        self._samples.clear()

    def _over(self) -> bool:
        if self._record_stream.broken or self._sample_stream.broken:
            with suppress(FileExistsError):
                os.mkdir(f"{self._directory}/{names.BROKEN}", names.DIRECTORY_MODE)
            return True
        if self._deleted:
            return True
        if not self._released:
            return False
        launches = {member.launch for member in self._tree.members.values()}
        # What a command leaves behind when it has ended (a daemon) is not waited for.
        return all(os.path.exists(f"{launch}/{names.OUTCOME}") for launch in launches)

    def _wait_until(self, time_ns: int) -> None:
        """Sleep, unless the launcher closes its pipe meanwhile."""
        seconds = max(0.0, (time_ns - time.monotonic_ns()) / 1e9)
        if self._released:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            self._released = True


def _next(time_ns: int, step_ns: int) -> int:
    """Return `time_ns` a step later, or a step from now where that has passed: no turn is made up for."""
    now_ns = time.monotonic_ns()
    return time_ns + step_ns if time_ns + step_ns >= now_ns else now_ns + step_ns


def main(arguments: list[str]) -> None:
    """``SESSION DIRECTORY INTERVAL_MS MOST_BYTES``: sample the session's processes here into DIRECTORY.

    MOST_BYTES is what the session may hold; 0: no limit.
    """
    session, directory, interval_ms, most_bytes = arguments
    os.umask(0o077)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # three files for each process
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        Sidecar(session, directory, int(interval_ms) * 1_000_000, int(most_bytes)).run()
    except Exception as error:
        with suppress(OSError):
            os.close(0)  # if descriptors have run out, this one writes why
            with open(f"{directory}/{names.LOG}", "w") as log:
                log.write(f"{time.time():.3f} {error!r}\n")
    finally:
        sys.stdout = sys.stderr = None
        os._exit(0)  # a thread may be stuck in a driver
