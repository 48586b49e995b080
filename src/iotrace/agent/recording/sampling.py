"""Sample what a thread is in, at times that have nothing to do with what it does.

A sample needs the interpreter's lock. The recorder lets this thread ask for it at once; so the thread that
has it gives it up at its next chance: behind the call in C that it is in, or the instructions in which it
never does. Without that request a sample is of where that thread next lets go by itself, up to 5 ms later:
that is in calls which release the lock, not in those that keep it.
"""

from __future__ import annotations

from time import monotonic_ns

from iotrace.agent.recording.borders import find_lock_asks, find_lock_waits
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

LATE_NS = 1_000_000  # the lock was not to be had: another thread was in one call, or took it first


class Sampler:
    """Takes the samples of a recorder's writer, while that waits for its next turn."""

    _random = 1

    def stopped_within(self, recorder: Any, stop: Any, seconds: float) -> bool:
        """Wait for the writer's end; sample meanwhile what the start computes, and then the loop."""
        left = seconds
        asks, waits = find_lock_asks(), find_lock_waits()
        while left > 0:
            sampled = recorder.startup or recorder.loop_stacks
            if sampled is None or sampled.over:
                break
            interval = sampled.interval_s
            if left < seconds and left < interval / 2:  # a sample so soon would be much like the last one
                break
            turn = min(left, interval * (0.5 + self._fraction()))  # a loop may be as regular as a clock
            due_ns, waited_ns = monotonic_ns() + int(1e9 * turn), 0 if waits is None else waits[0]
            if asks is not None:
                asks(1)
            try:
                if stop.acquire(True, turn):
                    return True
                late_ns = monotonic_ns() - due_ns
                if asks is not None and waits is not None:
                    late_ns = waits[0] - waited_ns  # not for a CPU; 0: the lock was free
                # As often as it would have been taken meanwhile, on average: the thread was in one place.
                times = 1 + int(late_ns / 1e9 / interval + self._fraction())
                sampled.sample(times, late=late_ns > LATE_NS, held=late_ns > 0, asked=asks is not None)
            except ours(Exception) as error:  # such as an audit hook that forbids it
                recorder.startup = recorder.loop_stacks = None
                recorder.absorb(error, "sampling what the program computes")
            finally:
                if asks is not None:
                    asks(0)
            left -= turn
        return bool(left > 0 and stop.acquire(True, left))

    def _fraction(self) -> float:
        """Return a number from 0 to 1 at random, as `random` is one import more."""
        self._random = (1664525 * self._random + 1013904223) % 2**32
        return self._random / 2**32
