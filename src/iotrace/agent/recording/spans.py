"""Time calls: wall time, thread CPU time and page faults, for under 2 us.

``getrusage(RUSAGE_THREAD)`` gives faults and context switches at once, but its CPU time moves in ticks
of 4 ms, and the exact clock (`time.thread_time_ns`) costs a system call more. A thread that was not
switched since the exact clock was last read has been on its CPU ever since, so that call is made only
after a switch. The thread may be switched between any two of these readings: the wall clock is read first,
so that a switch behind it is counted, and after one the exact clock is the answer itself. How long the thread
was ready to run but had no CPU changes at switches alone, and is read with the exact clock.

A reading of ``getrusage`` serves the next span, too, where that begins within 5 us: a switch that fits in
between is as short, and the faults in between are those of a few lines.
"""

from __future__ import annotations

from _contextvars import ContextVar
from _operator import itemgetter
from os import O_CLOEXEC, O_RDONLY
from posix import close, open, read
from resource import getrusage
from time import monotonic_ns, process_time_ns, thread_time_ns

from iotrace.agent.patching import hide_frame
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.unpatched import _local, get_native_id
from iotrace.session.guard import ours
from iotrace.session.names import KIND_REGION

TYPE_CHECKING = False  # `typing` costs as much as the rest of the agent
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    # A thread, its `getrusage`; its wall time, CPU time and run delay, in ns.
    Begun = tuple["_Thread", struct_rusage, int, int, int]
    # Called with the result and the arguments of a call: returns its bytes (-1: unknown) and its file (empty:
    # unknown), or None for a call that is not worth a span.
    Describe = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[int, str] | None]

RUSAGE_THREAD = 1
_UNKNOWN = (-1, "")
_FRESH_NS = 5_000
# Faults, minor and major; switches, voluntary and not.
_counts_of: Callable[[struct_rusage], tuple[int, int, int, int]] = itemgetter(6, 7, 14, 15)


# The thread that is in a call of a library with threads of its own, as that call's context has it: asyncio
# hands a context on to other threads, and so does zarr. Empty once the call has ended.
_caller: ContextVar[list[int]] = ContextVar("iotrace_caller")
_NOBODY: list[int] = []


class _Thread:
    """A thread's id, what its CPU clock and the scheduler said when they were last read, and its fetches.

    Fetches nest, as a dataset may iterate a loader of its own. `samples` were made so far in the open one;
    `ended` is the last one that ended. `depth` counts what is open: fetches, fetchers in the making, asks of
    sources that are no DataLoader. What is asked for within one is production.
    """

    __slots__ = (
        *(
            "depth",
            "ended",
            "failed",
            "fresh_until_ns",
            "no_delay_ns",
            "offset_ns",
            "run_delay_ns",
            "samples",
        ),
        *("counts", "switches", "tid"),
    )

    def __init__(self) -> None:
        self.depth = self.samples = 0
        # start_ns, end_ns, samples; -1 where the dataset makes batches itself (``batch_size=None``)
        self.ended = (0, 0, 0)
        self.begin_clocks()

    def begin_clocks(self) -> None:
        """Know nothing of the clocks yet."""
        self.tid = get_native_id()
        self.switches = -1
        # These are valid while the thread is not switched.
        self.offset_ns = 0  # CPU time less CLOCK_MONOTONIC
        self.run_delay_ns = -1  # so far, ready to run but without a CPU; -1 where the kernel does not say
        self.no_delay_ns = -1  # the delay of a span without a switch; -1 likewise
        # What `_counts_of` said at the last span's end, and until when it serves the next one.
        self.counts: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.fresh_until_ns = 0


class _Current(_local):
    """The calling thread's `_Thread`; one look-up a span, as thread-locals are slow to read."""

    def __init__(self) -> None:
        self.thread = _Thread()


current = _Current()


def thread_id() -> int:
    """Return the kernel's id of this thread."""
    return current.thread.tid


def thread_times() -> tuple[int, int, int]:
    """Return this thread's id, its CPU time and how long it waited for a CPU so far, in ns (-1: unknown)."""
    thread = current.thread
    wall_ns = monotonic_ns()
    cpu_ns = _cpu_ns(thread, wall_ns, getrusage(RUSAGE_THREAD))
    return thread.tid, cpu_ns, thread.run_delay_ns


def after_fork_in_child() -> None:
    """Start over in a forked child: its only thread has a new id and a clock of its own.

    A fetch that is open stays open, as the child may return from it.
    """
    current.thread.begin_clocks()


def _after_switch(thread: _Thread, switches: int) -> int:
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
        # Opened anew each time: a number that is kept may become a file of the program's.
        descriptor = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)
        try:
            return int(read(descriptor, 64).split()[1])
        finally:
            close(descriptor)
    except ours(OSError, ValueError, IndexError):
        return -1


def _cpu_ns(thread: _Thread, wall_ns: int, usage: struct_rusage) -> int:
    """Return the thread's CPU time at `wall_ns`, which was read just before `usage`."""
    switches = usage[14] + usage[15]
    return wall_ns + thread.offset_ns if switches == thread.switches else _after_switch(thread, switches)


def begin() -> Begun:
    """Begin a region: return what `end_region` needs."""
    thread = current.thread
    start_ns = monotonic_ns()
    before = getrusage(RUSAGE_THREAD)
    cpu_ns = _cpu_ns(thread, start_ns, before)
    return thread, before, start_ns, cpu_ns, thread.run_delay_ns


def end_region(recorder: Recorder, begun: Begun, name: str) -> None:
    """Record the region `name` that `begin` began on this thread."""
    thread, before, start_ns, start_cpu_ns, start_delay_ns = begun
    end_ns = monotonic_ns()
    after = getrusage(RUSAGE_THREAD)
    cpu_ns = _cpu_ns(thread, end_ns, after) - start_cpu_ns
    what = (-1, thread.tid, recorder.text(name), -1, KIND_REGION)
    faults = (after[6] - before[6], after[7] - before[7])
    switches = (after[14] - before[14], after[15] - before[15])
    delay_ns = thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1
    recorder.spans.append((start_ns, end_ns - start_ns, cpu_ns, *what, *faults, *switches, delay_ns))
    recorder.wake()


def _describe_failed(
    describe: Describe | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, str]:
    """Find the file of a call that raised, as far as that needs no result; what it asked may be closed."""
    try:
        known = None if describe is None else describe(None, args, kwargs)
    except ours(Exception):
        known = None
    return _UNKNOWN if known is None else (-1, known[1])


def timed(
    recorder: Recorder,
    call: Callable[..., Any],
    name: str,
    kind: int,
    describe: Describe | None = None,
    own_threads: bool = False,
    samples: int = 0,
    part: bool = False,
) -> Callable[..., Any]:
    """Wrap `call` so that each call records a span, also one that raises; one that returns makes `samples`.

    `describe` runs after the span's end; what it raises is not passed on. With `own_threads` the call works
    on threads of its own: its CPU time is the process's, at most its length, and its run delay is unknown. A
    `part` is not recorded inside such a call, on another thread, where it has no file: that span holds it.
    """
    if describe is None and not own_threads:
        return _timed_plainly(recorder, call, recorder.text(name), kind, samples)
    return _timed_described(recorder, call, recorder.text(name), kind, describe, own_threads, part)


def _timed_plainly(
    recorder: Recorder, call: Callable[..., Any], name_id: int, kind: int, samples: int
) -> Callable[..., Any]:
    """Wrap what is called for each sample and batch, without keywords: `_timed_described` for less."""
    append = recorder.spans.append

    def timed_call(*args: Any) -> Any:
        if recorder.unsettled:
            if recorder.over:  # an object of the program may outlive the part that was recorded
                try:
                    return call(*args)
                except BaseException as error:
                    hide_frame(error)
                    raise
            recorder.wake()
        thread = current.thread
        start_ns = monotonic_ns()
        if start_ns < thread.fresh_until_ns:
            before = thread.counts
            start_cpu_ns = start_ns + thread.offset_ns
        else:
            before = _counts_of(getrusage(RUSAGE_THREAD))
            switches = before[2] + before[3]
            same = switches == thread.switches
            start_cpu_ns = start_ns + thread.offset_ns if same else _after_switch(thread, switches)
        start_switches, start_delay_ns = thread.switches, thread.run_delay_ns
        try:
            result = call(*args)
            thread.samples += samples
            return result
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            end_ns = monotonic_ns()
            thread.counts = after = _counts_of(getrusage(RUSAGE_THREAD))
            thread.fresh_until_ns = end_ns + _FRESH_NS
            cpu_ns = end_ns + thread.offset_ns - start_cpu_ns
            minor = major = voluntary = involuntary = 0
            delay_ns = thread.no_delay_ns
            if after != before:
                minor, major = after[0] - before[0], after[1] - before[1]
                switches = after[2] + after[3]
                if switches != start_switches:
                    voluntary, involuntary = after[2] - before[2], after[3] - before[3]
                    same = switches == thread.switches
                    end_cpu_ns = end_ns + thread.offset_ns if same else _after_switch(thread, switches)
                    cpu_ns = end_cpu_ns - start_cpu_ns
                    delay_ns = thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1
            append(
                (
                    start_ns,
                    end_ns - start_ns,
                    cpu_ns,
                    -1,
                    thread.tid,
                    name_id,
                    -1,
                    kind,
                    minor,
                    major,
                    voluntary,
                    involuntary,
                    delay_ns,
                )
            )

    return timed_call


def _timed_described(
    recorder: Recorder,
    call: Callable[..., Any],
    name_id: int,
    kind: int,
    describe: Describe | None,
    own_threads: bool,
    part: bool,
) -> Callable[..., Any]:
    append = recorder.spans.append
    text = recorder.text

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        if recorder.unsettled:
            if recorder.over:  # an object of the program may outlive the part that was recorded
                try:
                    return call(*args, **kwargs)
                except BaseException as error:
                    hide_frame(error)
                    raise
            recorder.wake()
        thread = current.thread
        if part:
            caller = _caller.get(_NOBODY)
            if caller and caller[0] != thread.tid and not _describe_failed(describe, args, kwargs)[1]:
                try:
                    return call(*args, **kwargs)
                except BaseException as error:
                    hide_frame(error)
                    raise
        if own_threads:
            caller = [thread.tid]
            outer = _caller.set(caller)
        start_ns = monotonic_ns()
        before = getrusage(RUSAGE_THREAD)
        switches = before[14] + before[15]  # `_cpu_ns`, without the call
        same = switches == thread.switches
        start_cpu_ns = start_ns + thread.offset_ns if same else _after_switch(thread, switches)
        start_delay_ns = thread.run_delay_ns
        process_ns = process_time_ns() if own_threads else 0
        returned = failed = False
        try:
            result = call(*args, **kwargs)
            returned = True
            return result
        except BaseException as error:
            failed = not isinstance(error, StopIteration)  # which is no failure, but an iterator's end
            hide_frame(error)
            raise
        finally:
            end_ns = monotonic_ns()
            after = getrusage(RUSAGE_THREAD)
            switches = after[14] + after[15]
            same = switches == thread.switches
            end_cpu_ns = end_ns + thread.offset_ns if same else _after_switch(thread, switches)
            cpu_ns = end_cpu_ns - start_cpu_ns
            delay_ns = thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1
            if own_threads:
                caller.clear()
                try:
                    _caller.reset(outer)
                except ours(ValueError):  # the program has changed the context meanwhile
                    pass
                delay_ns = -1  # that of the other threads is unknown
                cpu_ns = min(max(cpu_ns, process_time_ns() - process_ns), end_ns - start_ns)
            known: tuple[int, str] | None = _UNKNOWN
            if describe is not None and returned:
                try:
                    known = describe(result, args, kwargs)
                except ours(Exception) as error:
                    recorder.absorb(error, "describing a call")
            elif describe is not None and failed:
                known = _describe_failed(describe, args, kwargs)
            if known is not None:
                append(
                    (
                        start_ns,
                        end_ns - start_ns,
                        cpu_ns,
                        known[0],
                        thread.tid,
                        name_id,
                        text(known[1]) if known[1] else -1,
                        kind,
                        after[6] - before[6],
                        after[7] - before[7],
                        after[14] - before[14],
                        after[15] - before[15],
                        delay_ns,
                    )
                )

    return timed_call
