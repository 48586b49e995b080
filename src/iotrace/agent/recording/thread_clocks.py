"""The clocks of the calling thread: its CPU time, its switches, how long it waited for a CPU; its fetches.

``getrusage(RUSAGE_THREAD)`` gives faults and context switches at once, but its CPU time moves in ticks
of 4 ms, and the exact clock (`time.thread_time_ns`) costs a system call more. A thread that was not
switched since the exact clock was last read has been on its CPU ever since, so that call is made only
after a switch. The thread may be switched between any two of these readings: the wall clock is read first,
so that a switch behind it is counted, and after one the exact clock is the answer itself. How long the thread
was ready to run but had no CPU changes at switches alone, and is read with the exact clock.
"""

from __future__ import annotations

from resource import getrusage
from time import monotonic_ns, thread_time_ns

from iotrace.agent.unpatched import _local, get_ident, get_native_id
from iotrace.session.guard import ours
from iotrace.session.identity import read_proc

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Any

    Border = list[int] | memoryview[int]  # its first place counts

RUSAGE_THREAD = 1
_MOST_TIDS = 1024
tids: dict[int, int] = {}  # the kernel's id of each thread that has clocks, by Python's; some are over


class Thread:
    """A thread's id, what its CPU clock and the scheduler said when they were last read, and its fetches.

    Fetches nest, as a dataset may iterate a loader of its own. `samples` were made so far in the open one;
    `ended` is the last one that ended. `depth` counts what is open: fetches, fetchers in the making, asks of
    sources that are no DataLoader. What is asked for within one is production.
    """

    __slots__ = (
        *("counts", "depth", "ended", "fresh_until_ns", "lock_waits", "no_delay_ns", "offset_ns"),
        *("puts", "run_delay_ns", "sampled", "samples", "switches", "taken", "task_offset_ns"),
        *("task_switches", "tid", "took"),
    )

    def __init__(self) -> None:
        self.depth = self.samples = 0
        # start_ns, end_ns, samples; -1 where the dataset makes batches itself (``batch_size=None``)
        self.ended = (0, 0, 0)
        self.begin_clocks()

    def begin_clocks(self) -> None:
        """Know nothing of the clocks yet."""
        self.tid = get_native_id()
        # By a queue's number: what is known of this thread's last `put` there.
        self.puts: dict[int, Any] = {}
        self.sampled = False  # beside the loop's thread, as it makes items
        # The pass whose item this thread works on in a function that its loop asks, until its step begins.
        self.taken: Any = None
        # How long it has waited for the interpreter's lock, in ns, in its first place; unless nobody asked.
        self.lock_waits: Border | None = None
        self.took = (0, 0)  # when it has last taken an item of its loop, in ns, and that first place then
        self.switches = self.task_switches = -1
        # As `offset_ns`, of where a task or an item began last: that asks nothing of the scheduler.
        self.task_offset_ns = 0
        # These are valid while the thread is not switched.
        self.offset_ns = 0  # CPU time less CLOCK_MONOTONIC
        self.run_delay_ns = -1  # so far, ready to run but without a CPU; -1 where the kernel does not say
        self.no_delay_ns = -1  # the delay of a span without a switch; -1 likewise
        # Faults and switches at the last span's end, and until when it serves the next one.
        self.counts: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.fresh_until_ns = 0


class _Current(_local):
    """The calling thread's `Thread`; one look-up a span, as thread-locals are slow to read."""

    def __init__(self) -> None:
        self.thread = Thread()
        if len(tids) >= _MOST_TIDS:
            tids.clear()
        tids[get_ident()] = self.thread.tid


current = _Current()


def thread_id() -> int:
    """Return the kernel's id of this thread."""
    return current.thread.tid


def thread_times() -> tuple[int, int, int]:
    """Return this thread's id, its CPU time and how long it waited for a CPU so far, in ns (-1: unknown)."""
    thread = current.thread
    wall_ns = monotonic_ns()
    cpu_ns = cpu_ns_at(thread, wall_ns, getrusage(RUSAGE_THREAD))
    return thread.tid, cpu_ns, thread.run_delay_ns


def after_fork_in_child() -> None:
    """Start over in a forked child: its only thread has a new id and a clock of its own.

    A fetch that is open stays open, as the child may return from it.
    """
    current.thread.begin_clocks()
    tids.clear()
    tids[get_ident()] = current.thread.tid


def after_switch(thread: Thread, switches: int) -> int:
    """Read the thread's CPU time, in ns, and keep what follows from it; `switches`: its switches so far."""
    thread.switches = switches
    now_ns = monotonic_ns()
    cpu_ns = thread_time_ns()
    thread.offset_ns = cpu_ns - now_ns
    thread.run_delay_ns = _run_delay_ns()
    thread.no_delay_ns = min(0, thread.run_delay_ns)
    return cpu_ns


def _run_delay_ns() -> int:
    """Return how long this thread has waited for a CPU since its start; -1 where the kernel does not say."""
    try:
        return int(read_proc("/proc/thread-self/schedstat", 64).split()[1])
    except ours(OSError, ValueError, IndexError):
        return -1


def cpu_ns_at(thread: Thread, wall_ns: int, usage: struct_rusage) -> int:
    """Return the thread's CPU time at `wall_ns`, which was read just before `usage`."""
    switches = usage[14] + usage[15]
    return wall_ns + thread.offset_ns if switches == thread.switches else after_switch(thread, switches)
