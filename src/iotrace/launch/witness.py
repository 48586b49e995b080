"""Telling a signal for us alone from one for the whole group.

A signal for the group (a key on the terminal, ``kill -- -PGID``, a batch system) has reached the command
already; passing it on would deliver it twice. A witness, a forked process that does nothing but wait for
signals beside us, tells which it was.
"""

from __future__ import annotations

import os
import select
import signal

# How long the witness may need to be scheduled and to tell.
_PATIENCE_S = 0.1
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
        self._told: list[int] = []

    def saw(self, number: int) -> bool:
        """Whether the witness got signal `number` too; waits a moment for its word."""
        if number not in self._told:
            ready, _, _ = select.select([self._reading], [], [], _PATIENCE_S)
            if ready:
                self._told += os.read(self._reading, 64)
        if number in self._told:
            self._told.remove(number)
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
    os.closerange(3, writing)
    os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX") if writing < 4096 else writing + 4096)
    while os.getppid() == launcher:
        received = signal.sigtimedwait(signals, _PARENT_CHECK_S)
        if received is not None:
            os.write(writing, bytes([received.si_signo]))
