"""Distinguish a signal for the launcher alone from one for its whole process group.

A signal for the group (a key on the terminal, ``kill -- -PGID``, a batch system) has reached the command
already: forwarding it would deliver it twice. The monitor, a forked process that does nothing but wait for
signals in the same group, reports which of them it received.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from contextlib import suppress

# For the monitor to be scheduled and to report; a later report is about another signal.
_PATIENCE_S = 0.1
_SAME_SIGNAL_NS = 1_000_000_000
_REPORT = struct.Struct("<Bq")  # the signal, and when it came (CLOCK_MONOTONIC, ns)
_PARENT_CHECK_S = 1.0


class SignalMonitor:
    """A process in our process group that reports each of `signals`, which must be blocked already."""

    def __init__(self, signals: set[signal.Signals]) -> None:
        self._reading, writing = os.pipe()
        launcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _watch(signals, writing, launcher)
            finally:
                os._exit(0)
        os.close(writing)
        os.set_blocking(self._reading, False)
        self._reports: list[tuple[int, int]] = []

    def received(self, number: int) -> bool:
        """Say whether the monitor has just received signal `number`, too; waits a moment for its report."""
        now_ns = time.monotonic_ns()
        if self._take(number, now_ns):
            return True
        ready, _, _ = select.select([self._reading], [], [], _PATIENCE_S)
        if ready:
            self._reports += _REPORT.iter_unpack(os.read(self._reading, 64 * _REPORT.size))
        return self._take(number, now_ns)

    def _take(self, number: int, now_ns: int) -> bool:
        self._reports = [report for report in self._reports if report[1] > now_ns - _SAME_SIGNAL_NS]
        for report in self._reports:
            if report[0] == number:
                self._reports.remove(report)
                return True
        return False

    def close(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reading)


def _watch(signals: set[signal.Signals], writing: int, launcher: int) -> None:
    # An open copy of the program's output would keep its reader from seeing the end.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != writing:
            with suppress(OSError):  # that of the listing
                os.close(int(name))
    while os.getppid() == launcher:
        received = signal.sigtimedwait(signals, _PARENT_CHECK_S)
        if received is not None:
            os.write(writing, _REPORT.pack(received.si_signo, time.monotonic_ns()))
