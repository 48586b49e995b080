"""Time calls: wall time, thread CPU time and page faults, for under 2 us.

`thread_clocks` says how a thread's CPU time is read.

A reading of ``getrusage`` serves the next span, too, where that begins within 5 us: a switch that fits in
between is as short, and the faults in between are those of a few lines.
"""

from __future__ import annotations

from _contextvars import ContextVar
from _operator import itemgetter
from resource import getrusage
from time import monotonic_ns, process_time_ns, thread_time_ns

from iotrace.agent.patching import TIMED_EVERY, hide_frame
from iotrace.agent.recording.borders import find_border
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import RUSAGE_THREAD, after_switch, cpu_ns_at, current
from iotrace.session.guard import ours
from iotrace.session.names import KIND_REGION, LONG_ROW

TYPE_CHECKING = False  # `typing` costs as much as the rest of the agent
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from iotrace.agent.recording.thread_clocks import Thread

    # A thread, its `getrusage`; its wall time, CPU time and run delay, in ns.
    Begun = tuple[Thread, struct_rusage, int, int, int]
    # Called with the result and the arguments of a call: returns its bytes (-1: unknown) and its file (empty:
    # unknown), or None for a call that is not worth a span.
    Describe = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[int, str] | None]

_UNKNOWN = (-1, "")
_FRESH_NS = 5_000
# Of samples whose index is recorded: times as long as the shortest of the first ones, and so long.
_LONG, _LEAST_NS, _FIRST = 4, 1_000_000, 2
# Faults, minor and major; switches, voluntary and not.
_counts_of: Callable[[struct_rusage], tuple[int, int, int, int]] = itemgetter(6, 7, 14, 15)


# The thread that is in a call of a library with threads of its own, as that call's context has it: asyncio
# hands a context on to other threads, and so does zarr. No thread once the call has ended.
_caller: ContextVar[list[int]] = ContextVar("iotrace_caller")
_NO_THREAD = 0
_NOBODY = [_NO_THREAD]


def begin() -> Begun:
    """Begin a region: return what `end_region` needs."""
    thread = current.thread
    start_ns = find_border()[0] = monotonic_ns()
    before = getrusage(RUSAGE_THREAD)
    cpu_ns = cpu_ns_at(thread, start_ns, before)
    return thread, before, start_ns, cpu_ns, thread.run_delay_ns


def end_region(recorder: Recorder, begun: Begun, name: str, kind: int = KIND_REGION) -> None:
    """Record the region `name` that `begin` began on this thread, or a span of another kind."""
    thread, before, start_ns, start_cpu_ns, start_delay_ns = begun
    end_ns = find_border()[0] = monotonic_ns()
    after = getrusage(RUSAGE_THREAD)
    cpu_ns = cpu_ns_at(thread, end_ns, after) - start_cpu_ns
    what = (-1, thread.tid, recorder.text(name), -1, kind)
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
    memory: bool = False,
) -> Callable[..., Any]:
    """Wrap `call` so that each call records a span, also one that raises; one that returns makes `samples`.

    `describe` runs after the span's end; what it raises is not passed on. With `own_threads` the call works
    on threads of its own: its CPU time is the process's, at most its length, and its run delay is unknown. A
    `part` is not recorded inside such a call, on another thread, where it has no file: that span holds it.
    A call on `memory` reads nothing: no switch of its thread is counted, as a wait for storage would be one.
    """
    name_id = recorder.text(name)
    if describe is None and not own_threads:
        return _timed_plainly(recorder, call, name_id, kind, samples)
    return _timed_described(recorder, call, name_id, kind, describe, own_threads, part, memory)


def _timed_described(
    recorder: Recorder,
    call: Callable[..., Any],
    name_id: int,
    kind: int,
    describe: Describe | None,
    own_threads: bool,
    part: bool,
    memory: bool,
) -> Callable[..., Any]:
    append, text, border = recorder.spans.append, recorder.text, find_border()
    times, counted = recorder.own_times, 0

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal counted
        counted += 1
        is_timed, aside = not counted % TIMED_EVERY, False
        if recorder.unsettled:
            aside = recorder.over  # an object of the program may outlive the part that was recorded
            recorder.wake()
        thread = current.thread
        begun_ns = thread_time_ns() if is_timed else 0
        if part and not aside:
            is_inside = _caller.get(_NOBODY)[0] not in (_NO_THREAD, thread.tid)
            aside = is_inside and not _describe_failed(describe, args, kwargs)[1]
        if aside:
            if is_timed:
                times.add(begun_ns)
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
        if own_threads:
            caller = [thread.tid]
            outer = _caller.set(caller)
        process_ns = process_time_ns() if own_threads else 0
        if is_timed:  # all that a plain span does not do
            times.add(begun_ns)
        start_ns = border[0] = monotonic_ns()
        before = getrusage(RUSAGE_THREAD)
        switches = before[14] + before[15]  # `cpu_ns_at`, without the call
        same = own_threads or switches == thread.switches
        start_cpu_ns = start_ns + thread.offset_ns if same else after_switch(thread, switches)
        start_delay_ns = thread.run_delay_ns
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
            end_ns = border[0] = monotonic_ns()
            after = getrusage(RUSAGE_THREAD)
            begun_ns = thread_time_ns() if is_timed else 0
            if not own_threads:
                switches = after[14] + after[15]
                same = switches == thread.switches
                end_cpu_ns = end_ns + thread.offset_ns if same else after_switch(thread, switches)
                cpu_ns = end_cpu_ns - start_cpu_ns
                delay_ns = thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1
            else:  # its thread was switched for sure, and what its own clocks say of that is not asked for
                caller[0] = _NO_THREAD
                try:
                    _caller.reset(outer)
                except ours(ValueError):  # the program has changed the context meanwhile
                    pass
                delay_ns = -1  # that of the other threads is unknown
                cpu_ns = min(process_time_ns() - process_ns, end_ns - start_ns)
            known: tuple[int, str] | None = _UNKNOWN
            if describe is not None and returned:
                try:
                    known = describe(result, args, kwargs)
                except ours(Exception) as error:
                    recorder.absorb(error, "describing a call")
            elif describe is not None and failed:
                known = _describe_failed(describe, args, kwargs)
            file = text(known[1]) if known is not None and known[1] else -1
            if is_timed:
                times.add(begun_ns)
            if known is not None:
                append(
                    (
                        start_ns,
                        end_ns - start_ns,
                        cpu_ns,
                        known[0],
                        thread.tid,
                        name_id,
                        file,
                        kind,
                        after[6] - before[6],
                        after[7] - before[7],
                        0 if memory else after[14] - before[14],
                        after[15] - before[15],
                        delay_ns,
                    )
                )

    return timed_call


def _long_samples(recorder: Recorder) -> Callable[[int, int, int, tuple[Any, ...]], int]:
    """Return what records the index of a sample that took longer than a limit, and gives the next limit.

    The first sample may get ready; the limit comes from the next two, and grows with each that passes it.
    """
    known: list[int] = []
    limit_ns = 0

    def is_long(duration_ns: int, tid: int, start_ns: int, args: tuple[Any, ...]) -> int:
        nonlocal limit_ns
        if limit_ns:
            limit_ns += limit_ns >> 4
            if args and type(args[0]) is int:
                recorder.append_row((LONG_ROW, tid, start_ns, args[0]))
            return limit_ns
        known.append(duration_ns)
        if len(known) > _FIRST:
            limit_ns = max(_LEAST_NS, _LONG * min(known[1:]))
        return limit_ns

    return is_long


def _timed_plainly(
    recorder: Recorder, call: Callable[..., Any], name_id: int, kind: int, samples: int
) -> Callable[..., Any]:
    """Wrap what is called for each sample, without keywords: `_timed_described` for less.

    The index of a sample that takes much longer than those before it is recorded, too.
    """
    append, border = recorder.spans.append, find_border()
    is_long, limit_ns = _long_samples(recorder), 0

    def timed_call(*args: Any) -> Any:
        nonlocal limit_ns
        if recorder.unsettled:
            if recorder.over:  # an object of the program may outlive the part that was recorded
                try:
                    return call(*args)
                except BaseException as error:
                    hide_frame(error)
                    raise
            recorder.wake()
        thread = current.thread
        start_ns = border[0] = monotonic_ns()
        if start_ns < thread.fresh_until_ns:
            before = thread.counts
            start_cpu_ns = start_ns + thread.offset_ns
        else:
            before = _counts_of(getrusage(RUSAGE_THREAD))
            switches = before[2] + before[3]
            same = switches == thread.switches
            start_cpu_ns = start_ns + thread.offset_ns if same else after_switch(thread, switches)
        start_switches, start_delay_ns = thread.switches, thread.run_delay_ns
        try:
            result = call(*args)
            if samples:
                thread.samples += samples
            return result
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            end_ns = border[0] = monotonic_ns()
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
                    end_cpu_ns = end_ns + thread.offset_ns if same else after_switch(thread, switches)
                    cpu_ns = end_cpu_ns - start_cpu_ns
                    delay_ns = thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1
            duration_ns = end_ns - start_ns
            if duration_ns > limit_ns:
                limit_ns = is_long(duration_ns, thread.tid, start_ns, args)
            append(
                (
                    start_ns,
                    duration_ns,
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
