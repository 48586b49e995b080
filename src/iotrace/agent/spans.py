"""Timed calls: wall time, thread CPU time and page faults, for under 2 us.

``getrusage(RUSAGE_THREAD)`` gives faults and context switches at once, but its CPU time moves in ticks
of 4 ms, and the exact clock (`time.thread_time_ns`) costs a system call more. A thread that was not
switched since the exact clock was last read has been on its CPU ever since, so that call is made only
after a switch.
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


Begun = tuple[_Thread, Any, int, int]


def begin() -> Begun:
    """What `end_region` needs of its beginning. (`timed` does the same inline: a call fewer on each side.)"""
    thread = _current.thread
    before = getrusage(RUSAGE_THREAD)
    start_ns = monotonic_ns()
    switches = before[14] + before[15]
    if switches != thread.switches:
        thread.switches = switches
        thread.offset_ns = thread_time_ns() - start_ns
    return thread, before, start_ns, thread.offset_ns


def end_region(recorder: Recorder, begun: Begun, name: str) -> None:
    """Record the region that `begin` began on this thread."""
    thread, before, start_ns, start_offset_ns = begun
    end_ns = monotonic_ns()
    after = getrusage(RUSAGE_THREAD)
    switches = after[14] + after[15]
    if switches != thread.switches:
        thread.switches = switches
        thread.offset_ns = thread_time_ns() - monotonic_ns()
    duration_ns = end_ns - start_ns
    cpu_ns = duration_ns + thread.offset_ns - start_offset_ns
    faults_and_switches = [after[field] - before[field] for field in (6, 7, 14, 15)]
    name_id = recorder.text(name)
    recorder.spans.append(
        (start_ns, duration_ns, cpu_ns, -1, thread.tid, name_id, -1, KIND_REGION, *faults_and_switches)
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
        before = getrusage(RUSAGE_THREAD)
        start_ns = monotonic_ns()
        switches = before[14] + before[15]
        if switches != thread.switches:
            thread.switches = switches
            thread.offset_ns = thread_time_ns() - start_ns
        start_offset_ns = thread.offset_ns
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
            if switches != thread.switches:
                thread.switches = switches
                thread.offset_ns = thread_time_ns() - monotonic_ns()
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
                    end_ns - start_ns + thread.offset_ns - start_offset_ns,
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
