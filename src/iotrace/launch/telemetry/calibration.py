"""A fixed piece of work: the CPU time that it takes tells how fast the CPUs were while the command ran.

A virtual machine's CPUs change speed with their host's clocks, and with what their sibling threads do: the
same decode took up to 24 % more CPU time from one run to the next. Inflating text that fits into the second
level cache follows that best, of what was tried.
"""

from __future__ import annotations

import hashlib
import time
import zlib

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
