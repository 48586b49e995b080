"""Telling a signal for us alone from one for the whole group.

A signal for the group (a key on the terminal, ``kill -- -PGID``, a batch system) has reached the command
already; passing it on would deliver it twice. A witness, a forked process that does nothing but wait for
signals beside us, tells which it was.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time

# How long the witness may need to be scheduled and to tell; what it tells later is another signal's.
_PATIENCE_S = 0.1
_SAME_SIGNAL_NS = 1_000_000_000
_WORD = struct.Struct("<Bq")  # the signal, and when it came (CLOCK_MONOTONIC)
_PARENT_CHECK_S = 1.0


class Witness:
    """A process in our process group that tells each signal it gets. The signals must be blocked already."""

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
        self._told: list[tuple[int, int]] = []

    def saw(self, number: int) -> bool:
        """Whether the witness has just got signal `number` too; waits a moment for its word."""
        now_ns = time.monotonic_ns()
        if not self._take(number, now_ns):
            ready, _, _ = select.select([self._reading], [], [], _PATIENCE_S)
            if ready:
                self._told += _WORD.iter_unpack(os.read(self._reading, 64 * _WORD.size))
            return self._take(number, now_ns)
        return True

    def _take(self, number: int, now_ns: int) -> bool:
        self._told = [(told, at_ns) for told, at_ns in self._told if at_ns > now_ns - _SAME_SIGNAL_NS]
        for word in self._told:
            if word[0] == number:
                self._told.remove(word)
                return True
        return False

    def dismiss(self) -> None:
        """End the witness."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reading)


def _watch(signals: set[signal.Signals], writing: int, launcher: int) -> None:
    # Holding the program's output open would keep a reader of it from seeing its end.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != writing:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass
    while os.getppid() == launcher:
        received = signal.sigtimedwait(signals, _PARENT_CHECK_S)
        if received is not None:
            os.write(writing, _WORD.pack(received.si_signo, time.monotonic_ns()))
