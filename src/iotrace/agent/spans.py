"""Timed calls: wall time, thread CPU time and page faults, for under 2 us.

``getrusage(RUSAGE_THREAD)`` gives faults and context switches at once, but its CPU time moves in ticks
of 4 ms, and the exact clock (`time.thread_time_ns`) costs a system call more. A thread that was not
switched since the exact clock was last read has been on its CPU ever since, so that call is made only
after a switch. The thread may be switched between any two of these readings: the wall clock is read first,
so that a switch behind it is counted, and after one the exact clock is the answer itself.
"""

from __future__ import annotations

from _thread import _local, get_native_id
from collections.abc import Callable
from resource import getrusage
from time import monotonic_ns, thread_time_ns
from typing import Any

from iotrace.agent.patching import hide_frame
from iotrace.agent.recorder import Recorder
from iotrace.session.names import KIND_REGION

RUSAGE_THREAD = 1


class _Thread:
    """A thread's id, and what its CPU clock said when it was last read."""

    __slots__ = ("offset_ns", "switches", "tid")

    def __init__(self) -> None:
        self.tid = get_native_id()
        self.switches = -1
        self.offset_ns = 0  # CPU time less CLOCK_MONOTONIC, valid while not switched


class _Current(_local):
    """The calling thread's `_Thread`; one look-up a span, as thread-locals are slow to read."""

    def __init__(self) -> None:
        self.thread = _Thread()


_current = _Current()


def thread_id() -> int:
    """The kernel's id of this thread."""
    return _current.thread.tid


def forget_threads() -> None:
    """In a forked child: its only thread has a new id and a clock of its own."""
    _current.thread = _Thread()


def _after_switch(thread: _Thread, switches: int) -> int:
    """The thread's CPU time now; `switches` are those that it has had by now."""
    thread.switches = switches
    now_ns = monotonic_ns()
    cpu_ns = thread_time_ns()
    thread.offset_ns = cpu_ns - now_ns
    return cpu_ns


def _cpu_ns(thread: _Thread, wall_ns: int, usage: Any) -> int:
    """The thread's CPU time at `wall_ns`, which was read just before `usage`."""
    switches = usage[14] + usage[15]
    return wall_ns + thread.offset_ns if switches == thread.switches else _after_switch(thread, switches)


Begun = tuple[_Thread, Any, int, int]


def begin() -> Begun:
    """What `end_region` needs of its beginning."""
    thread = _current.thread
    start_ns = monotonic_ns()
    before = getrusage(RUSAGE_THREAD)
    return thread, before, start_ns, _cpu_ns(thread, start_ns, before)


def end_region(recorder: Recorder, begun: Begun, name: str) -> None:
    """Record the region that `begin` began on this thread."""
    thread, before, start_ns, start_cpu_ns = begun
    end_ns = monotonic_ns()
    after = getrusage(RUSAGE_THREAD)
    cpu_ns = _cpu_ns(thread, end_ns, after) - start_cpu_ns
    faults_and_switches = [after[field] - before[field] for field in (6, 7, 14, 15)]
    name_id = recorder.text(name)
    recorder.spans.append(
        (start_ns, end_ns - start_ns, cpu_ns, -1, thread.tid, name_id, -1, KIND_REGION, *faults_and_switches)
    )


def timed(
    recorder: Recorder,
    call: Callable[..., Any],
    name: str,
    kind: int,
    describe: Callable[[Any, tuple[Any, ...]], tuple[int, str]] | None = None,
) -> Callable[..., Any]:
    """`call`, recording a span for each call that it makes, also one that raises.

    ``describe(result, args)`` gives the bytes (-1: unknown) and the file (empty: unknown) of a call; it
    runs after the span's end. What it raises is not recorded, nor passed on.
    """
    append = recorder.spans.append
    text = recorder.text
    name_id = text(name)

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        if recorder.over:  # an object of the program's may outlive the part that was recorded
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
        thread = _current.thread
        start_ns = monotonic_ns()
        before = getrusage(RUSAGE_THREAD)
        switches = before[14] + before[15]  # `_cpu_ns`, without the call
        same = switches == thread.switches
        start_cpu_ns = start_ns + thread.offset_ns if same else _after_switch(thread, switches)
        returned = False
        try:
            result = call(*args, **kwargs)
            returned = True
            return result
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            end_ns = monotonic_ns()
            after = getrusage(RUSAGE_THREAD)
            switches = after[14] + after[15]
            same = switches == thread.switches
            end_cpu_ns = end_ns + thread.offset_ns if same else _after_switch(thread, switches)
            size_bytes, file_id = -1, -1
            if describe is not None and returned:
                try:
                    size_bytes, path = describe(result, args)
                    file_id = text(path) if path else -1
                except Exception:
                    pass
            append(
                (
                    start_ns,
                    end_ns - start_ns,
                    end_cpu_ns - start_cpu_ns,
                    size_bytes,
                    thread.tid,
                    name_id,
                    file_id,
                    kind,
                    after[6] - before[6],
                    after[7] - before[7],
                    after[14] - before[14],
                    after[15] - before[15],
                )
            )

    return timed_call
