"""What is known of the tasks of pools: who made each, where and when; and who takes their results.

What is known of a task lies beside what hands its result over, never in the result: what processes send to
each other stays as it is, since pools number their tasks themselves. A pool is a source for the thread of the
program that takes results from it: each call that returns one is an ask. Results that libraries, or tasks
themselves, take are not recorded.
"""

from __future__ import annotations

import os
import sys
from _stat import S_ISSOCK
from itertools import count
from resource import getrusage
from time import monotonic_ns, thread_time_ns

from iotrace.agent import imports
from iotrace.agent.pools import callers
from iotrace.agent.recording.borders import LONG_WAIT_NS, find_lock_waits
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import RUSAGE_THREAD, after_switch, current
from iotrace.agent.unpatched import get_ident
from iotrace.session.names import (
    HANDED_ROW,
    KIND_CALLBACK,
    KIND_ITEM,
    LOCKED_ROW,
    MADE_ROW,
    PART_OF_TASK,
)

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from iotrace.agent.recording.thread_clocks import Thread

    Span = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
    # A thread, its clocks: CLOCK_MONOTONIC, CPU time, the last known wait for a CPU; its `getrusage`;
    # how long it has waited for the interpreter's lock.
    Begun = tuple[Thread, int, int, int, struct_rusage, int]
    LaterSpan = tuple[Callable[..., Span], Begun, Begun, int, int]
    Made = tuple[tuple[int, int, int, int], Span]  # the rest of a `MADE_ROW`, and the span of it

_LONGEST = 80  # name
_MUCH_BYTES = 4096  # a task that is given so much works on data: it does not fetch it
_MOST_SITES = 64  # of a pool
_DEEPEST = 3  # sequences in each other that are looked into for that
_LONG_NS = 1_000_000
# Tasks that end faster are followed no longer: to record them would slow the program, and fill its memory.
_FAST_NS, LOOK_EVERY = 100_000, 8192  # ns, tasks
_SOCKETS = 1
OF_FUTURE = "_iotrace_task"  # the attribute of a future
POLLED, CHUNKED, TIMED, FAST, UNSEEN = "polled", "chunked", "timed", "fast", "unseen"
_OF_JOBLIB = "BatchedCalls"  # a task of joblib, which holds functions and what they are given
MOST_PARTS = 1024  # of a task

running: set[int] = set()  # threads of pools, by `get_ident`, that work on a task
awaited: dict[
    int, tuple[int, int]
] = {}  # by `get_ident`: a call that waited for tasks, and returned no result
_own_files: dict[str, bool] = {}  # by a code's file: whether it is the program's
next_pool = count(2, 2).__next__  # pools of processes have odd numbers
works_for_pool = False  # this process does
_wrapped_source: Any = None


class Pace:
    """How fast the tasks of a pool, or of one of its workers, follow each other."""

    is_fast = False
    counted = looked_ns = 0

    def count(self) -> None:
        """Count a task; where too many came in a short time, none is followed any more."""
        self.counted += 1
        if not self.counted % LOOK_EVERY:
            now_ns = monotonic_ns()
            self.is_fast = self.is_fast or now_ns - self.looked_ns < LOOK_EVERY * _FAST_NS
            self.looked_ns = now_ns


class Pool(Pace):
    """A pool's number and class, its workers, and the pass that records what is taken from it."""

    def __init__(self, pool: Any, workers: int, results: Any) -> None:
        self.number = number_of(results._reader) if hasattr(results, "_reader") else next_pool()
        self.made_by = type(pool).__name__
        prefix = getattr(pool, "_thread_name_prefix", "")  # of an executor
        # What else tells its maker from others, and the lines of functions, by name.
        self.apart = [f"thread {prefix}"[:_LONGEST]] if prefix else []
        self.sites: dict[str, str] = {}
        self.workers = workers
        self.limit = 0  # of items that it holds; 0: any number
        self.taking: Any = None
        self.doubts: set[str] = set()
        self.described = False
        self.of_library = 0  # tasks in a row that a library has submitted for itself

    def forget(self) -> None:
        """Be as new to the next session, or to a forked child."""
        self.taking, self.described = None, False
        self.doubts.clear()


class Task:
    """What is known of a task of a pool, beside what hands its result over; -1 and 0: not yet."""

    __slots__ = (
        *("arrived_ns", "asked_ns", "chunked", "feeds", "made", "name", "number", "polled", "pool"),
        *("submitted_ns", "taken"),
    )

    def __init__(self) -> None:
        self.number = -1  # among the tasks of its pool
        self.pool: Pool | None = None
        self.name = ""
        self.chunked = self.feeds = self.polled = self.taken = False  # `feeds`: a library makes batches so
        self.submitted_ns = self.asked_ns = 0
        self.arrived_ns = -1  # from another process, unpickled
        self.made: Made | None = None  # by a thread of this process


UNFOLLOWED = Task()  # stands for each task that a library has submitted for itself
UNFOLLOWED.taken = True


def number_of(pipe: Any) -> int:
    """Number a pool of processes by an end of the pipe of its results, as both sides know it.

    The two ends of a socket, as a pipe for both ways has them, have nothing in common: all are one.
    """
    known = os.fstat(pipe.fileno())
    return _SOCKETS if S_ISSOCK(known.st_mode) else known.st_ino << 1 | 1


def begin_task(thread: Thread | None = None) -> Begun:
    """Begin with a task on this thread: return what `end_task` needs.

    A thread that was not switched meanwhile is spared the system call of the CPU clock (`thread_clocks`).
    """
    thread = thread or current.thread
    waits = thread.lock_waits
    if waits is None:
        waits = thread.lock_waits = find_lock_waits()
    waited_ns = 0 if waits is None else waits[0]
    now_ns, usage = monotonic_ns(), getrusage(RUSAGE_THREAD)
    switches = usage[14] + usage[15]
    if switches == thread.task_switches:
        return thread, now_ns, now_ns + thread.task_offset_ns, thread.run_delay_ns, usage, waited_ns
    thread.task_switches = switches
    now_ns, cpu_ns = monotonic_ns(), thread_time_ns()
    thread.task_offset_ns = cpu_ns - now_ns
    return thread, now_ns, cpu_ns, thread.run_delay_ns, usage, waited_ns


def end_task(recorder: Recorder, begun: Begun, name: str, fed: bool, feeds: bool = False) -> Made:
    """Return what is known of the task called `name` that this thread began with, and has ended.

    `feeds`: a library takes what it made.
    """
    ended, kind = begin_task(), KIND_CALLBACK if feeds else KIND_ITEM
    return (begun[0].tid, begun[1], ended[1], int(fed)), span_of(recorder, begun, ended, name, kind)


def span_of(recorder: Recorder, begun: Begun, ended: Begun, name: str, kind: int = KIND_ITEM) -> Span:
    """Make the span of what this thread did in between."""
    return _between(begun, ended, recorder.text(name), _delay_between(recorder, begun, ended), kind)


def later_span_of(recorder: Recorder, begun: Begun, ended: Begun, name: str) -> LaterSpan:
    """Note the same, at half the price: the recorder makes the span when it writes."""
    delay_ns = -1
    if ended[1] - begun[1] >= _LONG_NS or ended[5] - begun[5] >= LONG_WAIT_NS:
        delay_ns = _delay_between(recorder, begun, ended)
    return _between, begun, ended, recorder.text(name), delay_ns


def _delay_between(recorder: Recorder, begun: Begun, ended: Begun) -> int:
    """Return what this thread waited for a CPU in between; record what it waited for the interpreter's lock.

    The former is read of long ones alone: that costs more than many a task. It counts from the last one
    on; in between the thread hardly ran.
    """
    thread, start_ns, _, start_delay_ns, _, before_ns = begun
    _, end_ns, _, _, after, waited_ns = ended
    if waited_ns - before_ns >= LONG_WAIT_NS:
        row = (LOCKED_ROW, thread.tid, start_ns, end_ns, waited_ns - before_ns, -1)
        recorder.records.append(row)
    if end_ns - start_ns < _LONG_NS:
        return -1
    after_switch(thread, after[14] + after[15])
    return thread.run_delay_ns - start_delay_ns if start_delay_ns >= 0 else -1


def _between(begun: Begun, ended: Begun, name: int, delay_ns: int, kind: int = KIND_ITEM) -> Span:
    thread, start_ns, start_cpu_ns, _, before, _ = begun
    _, end_ns, cpu_ns, _, after, _ = ended
    about = (-1, thread.tid, name, -1, kind)
    faults = (after[6] - before[6], after[7] - before[7])
    switches = (after[14] - before[14], after[15] - before[15])
    return start_ns, end_ns - start_ns, cpu_ns - start_cpu_ns, *about, *faults, *switches, delay_ns


def is_task(frame: Any) -> bool:
    """Whether what `frame` has called is a task of a pool of threads."""
    is_pools = frame is not None and frame.f_globals.get("__name__") == "concurrent.futures.thread"
    return is_pools and get_ident() in running


def made_rows(pool: int, number: int, row: tuple[int, int, int, int], parts: int) -> list[tuple[int, ...]]:
    """Say of each item of a task how it was made: they come along with the first, which took all the time."""
    tid, _, ended_ns, _ = row
    others = range(1, min(parts, MOST_PARTS))
    along = [(MADE_ROW, pool, number + part * PART_OF_TASK, tid, ended_ns, ended_ns, 0) for part in others]
    return [(MADE_ROW, pool, number, *row), *along]


def take_along(task: Task, part: int, asked_ns: int, recorder: Recorder) -> None:
    """Record that this thread has another item of a task that makes several, after the first."""
    if task.pool is not None and task.pool.taking is not None and task.taken and part < MOST_PARTS:
        of_pool = task.pool.number, task.number + part * PART_OF_TASK, task.submitted_ns or -1, -1
        deliver(task.pool, task.name, asked_ns, monotonic_ns(), of_pool, recorder)


def take(
    task: Task, asked_ns: int, was_done: bool, recorder: Recorder, of_program: bool = False, parts: int = 1
) -> None:
    """Record that this thread of the program has the result of `task`, which it asked for at `asked_ns`.

    Where it `was_done` by then, the thread has waited before, if at all. What a task takes is no turn of a
    loop, but a part of that task's making. Without `of_program` the calling code has to be the program's.
    """
    taken_ns, ident, pool = monotonic_ns(), get_ident(), task.pool
    waited = awaited.pop(ident, None)
    if pool is None or task.number < 0 or current.thread.depth or works_for_pool:
        return
    source = _source()
    if source.training.in_worker() or not (of_program or _is_programs()):
        return
    task.taken = True
    polled = task.polled and was_done and waited is None
    if waited is not None and was_done:
        asked_ns, taken_ns = waited
    if task.made is not None:
        row, span = task.made
        recorder.spans.append(span)
        recorder.records.extend(made_rows(pool.number, task.number, row, parts))
    if ident in running:
        if not pool.described:
            describe(pool, task.name, recorder)
        taken = current.thread.tid, asked_ns, taken_ns, -1, -1
        recorder.records.append((HANDED_ROW, pool.number, task.number, *taken))
        return
    of_pool = pool.number, task.number, task.submitted_ns or -1, task.arrived_ns
    deliver(pool, task.name, asked_ns, taken_ns, of_pool, recorder)
    for doubt, holds in ((POLLED, polled), (CHUNKED, task.chunked)):
        if holds:
            note_doubt(pool, doubt, recorder)


def note_doubt(pool: Pool, doubt: str, recorder: Recorder) -> None:
    """Record once why what was taken from a pool may be no turns of a loop."""
    if pool.taking is not None and doubt not in pool.doubts:
        pool.doubts.add(doubt)
        recorder.records.append({"type": "pool_doubt", "iterator": pool.taking.number, "doubt": doubt})


def note_site(pool: Pool, name: str, call: Any) -> None:
    """Note the line of the program's function that a pool's tasks call."""
    if name not in pool.sites and len(pool.sites) < _MOST_SITES:
        code = code_of(called_in(call))
        is_own = code is not None and callers.whose_file(code.co_filename) == callers.PROGRAMS
        pool.sites[name] = f"{code.co_filename}:{code.co_firstlineno}" if is_own else ""


def describe(pool: Pool, name: str, recorder: Recorder) -> None:
    """Record the class of a queue or a pool, how many items it holds, and what makes them."""
    pool.described = True
    about: dict[str, Any] = {"queue": pool.number, "of": pool.made_by, "limit": pool.limit, "by": name}
    if pool.apart:
        about["apart"] = pool.apart
    if sites := {each: site for each in (name, *pool.apart) if (site := pool.sites.get(each))}:
        about["sites"] = sites
    recorder.records.append({"type": "queue", **about, "mono_ns": monotonic_ns()})


def deliver(
    pool: Pool, name: str, asked_ns: int, taken_ns: int, task: tuple[int, int, int, int], recorder: Recorder
) -> None:
    """Record that this thread took the result of `task`, as from a loader of the pool's."""
    if pool.taking is None:
        between = ("concurrent", "multiprocessing", "queue")
        pool.taking = _source().Pass(pool, None, name, recorder, between, pool.workers, pool.made_by)
    pool.taking.deliver(asked_ns, taken_ns, task)
    if pool.is_fast:
        note_doubt(pool, FAST, recorder)


def trains() -> bool:
    """Whether this thread has trained."""
    training = sys.modules.get("iotrace.agent.training")
    return get_ident() in getattr(training, "threads", ())  # it may be imported just now


def in_loader_worker() -> bool:
    """Whether this process is a worker of torch's loaders, which have records of their own."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _source() -> Any:
    """Return the module that records passes, which not every program needs."""
    global _wrapped_source
    if _wrapped_source is None:
        _wrapped_source = imports.load("dataloader.wrapped_source")
    return _wrapped_source


def _is_programs() -> bool:
    """Whether code of the program asked, not a library."""
    frame: Any = sys._getframe(1)
    passed = ("iotrace", "concurrent", "multiprocessing")
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in passed:
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    own = _own_files.get(file)
    if own is None:
        installed = file.startswith((os.path.dirname(os.__file__), "<frozen"))
        own = _own_files[file] = not installed and "-packages/" not in file
    return own


def name_of(call: Any) -> str:
    """Name what a task calls."""
    call = called_in(call)
    name = str(getattr(call, "__qualname__", type(call).__qualname__)).rpartition("<locals>.")[2]
    code = code_of(call)
    return f"lambda of line {code.co_firstlineno}" if name == "<lambda>" and code is not None else name


def called_in(call: Any) -> Any:
    """Return what a task calls, without what it is wrapped in."""
    while hasattr(call, "func"):
        chunk = getattr(call.func, "__name__", "") == "_process_chunk" and call.args
        call = call.args[0] if chunk else call.func
    return call.items[0][0] if type(call).__name__ == _OF_JOBLIB and call.items else call


def code_of(call: Any) -> Any:
    """Return the code of what a task calls; None of what is not written in Python."""
    while hasattr(call, "func"):
        call = call.func
    call = getattr(call, "__func__", call)
    while hasattr(call, "__wrapped__"):
        call = call.__wrapped__
    return getattr(call, "__code__", None) or getattr(type(call).__dict__.get("__call__"), "__code__", None)


def of_program(called: Any) -> Any:
    """Find the program's function that a library calls, in what a task is given; None: it is its own."""
    held = (getattr(cell, "cell_contents", None) for cell in getattr(called[0], "__closure__", None) or ())
    for each in (*called, *held):  # it may go on with a generator
        code = getattr(each, "gi_code", None) or code_of(each)
        if code is not None and callers.whose_file(code.co_filename) == callers.PROGRAMS:
            return each
    return None


def parts_of(call: Any) -> int:
    """Count the items that a task makes, which joblib hands over one by one."""
    while hasattr(call, "func"):
        call = call.func
    return len(call.items) if type(call).__name__ == _OF_JOBLIB else 1


def is_much(given: Any, depth: int = 0) -> bool:
    """Whether an argument holds data, as an array or as bytes; of a sequence in it the first item tells."""
    kind = type(given)
    if kind.__name__ == _OF_JOBLIB:
        given, kind = [each[1] for each in given.items], list
    if kind in (list, tuple):
        return depth < _DEEPEST and any(is_much(each, depth + 1) for each in given[: 8 if not depth else 1])
    if kind in (bytes, bytearray, memoryview):
        return len(given) >= _MUCH_BYTES
    if kind.__module__.partition(".")[0] not in ("numpy", "torch", "jaxlib") or kind.__name__ == "memmap":
        return False
    size: int = getattr(given, "nbytes", 0)
    return size >= _MUCH_BYTES


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    running.clear()
    awaited.clear()
