"""The sidecar's main loop: samples until the command's last process on this host has ended.

A process of its own session: no key on the terminal reaches it, it outlives a killed launcher by no more than
the command does, and nothing of it runs in the program. Its standard input is a pipe that the launcher holds
open; when that closes, the launcher has seen the command's end or has died.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

from iotrace.agent.identity import boot_id
from iotrace.agent.recorder import clock_anchor
from iotrace.agent.stream import Stream
from iotrace.launch.telemetry import amd, nvml
from iotrace.launch.telemetry.gpus import Poller
from iotrace.launch.telemetry.procfs import TICKS_PER_SECOND, parse_stat
from iotrace.launch.telemetry.system import System
from iotrace.launch.telemetry.tree import Tree
from iotrace.session import names

_SLOW_NS = 1_000_000_000
_LAST_POLL_S = 0.3
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Sidecar:
    """Samples the processes at each turn, and everything else once a second."""

    def __init__(self, session: str, directory: str, interval_ns: int) -> None:
        self._session = session
        self._directory = directory
        self._interval_ns = interval_ns
        self._records: deque[dict[str, Any]] = deque()  # also filled by the threads that poll devices
        self._samples: list[bytes] = []
        self._record_stream = Stream(f"{directory}/{names.RECORDS}")
        self._sample_stream = Stream(f"{directory}/{names.SAMPLES}")
        self._system = System()
        with open("/proc/self/stat", "rb") as file:
            self._start_ticks = parse_stat(file.read()).start_ticks
        self._tree = Tree(session, self._start_ticks)
        self._poller = Poller({"NVML": nvml.find, "amdsmi": amd.find}, self._records.append)
        self._costs = {"scan": 0, "processes": 0}
        self._released = self._deleted = False

    def run(self) -> None:
        """Sample until the end; returns when nothing is left to sample or to write to."""
        self._records.append(self._describe())
        self._flush()  # says who holds the claim
        self._poller.start()
        slow_ns = turn_ns = time.monotonic_ns()
        while True:
            # A young command's processes are looked for at once: it may end within the second.
            slow = turn_ns >= slow_ns
            if slow or self._released or not self._tree.members:
                self._scan()
            self._sample()
            if slow:
                self._slow()
                slow_ns = turn_ns + _SLOW_NS
            if self._over():
                break
            turn_ns += self._interval_ns
            if turn_ns < time.monotonic_ns():  # late, on a busy machine: no turn is made up for
                turn_ns = time.monotonic_ns() + self._interval_ns
            self._wait_until(turn_ns)
        self._poller.stop(_LAST_POLL_S)
        self._slow()
        self._records.append({"type": "end", "mono_ns": time.monotonic_ns()})
        self._flush()

    def _describe(self) -> dict[str, Any]:
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
        }

    def _scan(self) -> None:
        before_ns = time.perf_counter_ns()
        self._records.extend(self._tree.scan())
        self._costs["scan"] += time.perf_counter_ns() - before_ns

    def _sample(self) -> None:
        before_ns = time.perf_counter_ns()
        self._samples.append(self._tree.sample())
        self._costs["processes"] += time.perf_counter_ns() - before_ns

    def _slow(self) -> None:
        """The host's figures, the clocks, the sampler's own cost; then everything is written."""
        record = {"type": "system", "clock": clock_anchor(), **self._system.read()}
        record["switches"] = self._tree.switches()
        record["cost_ns"].update(self._costs)
        record["sampler_cpu_ns"] = time.process_time_ns()
        self._records.append(record)
        self._costs = dict.fromkeys(self._costs, 0)
        self._poller.check()
        self._flush()
        self._deleted = not os.path.isdir(self._directory)

    def _flush(self) -> None:
        """Records first: they say whose the samples are."""
        lines = []
        while self._records:
            lines.append(json.dumps(self._records.popleft(), separators=(",", ":")))
        self._record_stream.write("".join(f"{line}\n" for line in lines).encode())
        self._sample_stream.write(b"".join(self._samples))
        self._samples.clear()

    def _over(self) -> bool:
        if self._record_stream.broken or self._sample_stream.broken:
            with suppress(FileExistsError):
                os.mkdir(f"{self._directory}/{names.BROKEN}")
            return True
        if self._deleted:
            return True
        if not self._released:
            return False
        launches = {member.launch for member in self._tree.members.values()}
        # What a command leaves behind when it has ended (a daemon) is not waited for.
        return all(os.path.exists(f"{launch}/{names.OUTCOME}") for launch in launches)

    def _wait_until(self, time_ns: int) -> None:
        """Sleep, unless the launcher lets go meanwhile."""
        seconds = max(0.0, (time_ns - time.monotonic_ns()) / 1e9)
        if self._released:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            self._released = True


def main(arguments: list[str]) -> None:
    """``SESSION DIRECTORY INTERVAL_MS``: sample the session's processes on this host into DIRECTORY."""
    session, directory, interval_ms = arguments
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # three files for each process
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        Sidecar(session, directory, int(interval_ms) * 1_000_000).run()
    except Exception as error:
        try:
            os.close(0)  # if descriptors have run out, this one writes why
            with open(f"{directory}/{names.LOG}", "w") as log:
                log.write(f"{time.time():.3f} {error!r}\n")
        except OSError:
            pass
    finally:
        sys.stdout = sys.stderr = None
        os._exit(0)  # a thread may be stuck in a driver
