"""Record what the threads that train wait for: a batch that another thread made comes by a queue or a future.

``queue.Queue``, ``threading.Event`` and ``concurrent.futures`` block in ``threading.Condition.wait``. The
waits of the main thread, of threads that train and of threads that take batches are recorded, each with the
thread that ended it; their calls of ``queue.Queue`` as a whole, as a thread also waits there for its turn.
A call that found the queue empty or full is no record: the next one that succeeds began with it, unless the
thread has trained in between.
``queue.SimpleQueue`` is written in C and cannot be seen.
"""

from __future__ import annotations

from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, pass_for, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.agent.unpatched import get_ident
from iotrace.session.guard import ours
from iotrace.session.names import BLOCKED_ROW, CALLS

_GET = CALLS.index("get")
# So much more costs a notification, and a wait that is recorded, between other calls.
_PASSED_NS, _WAIT_NS = 500, 3000
watched: set[int] = set()  # threads, by `get_ident`
_wakers: dict[int, int] = {}  # by a condition's id: the thread that notified it, 0 so far
_in_queue: dict[int, int] = {}  # by a thread that is inside of a call of a queue: the thread that woke it
# By a thread and its call, and by a queue's id: when the first call in vain since one succeeded began.
_polled: dict[tuple[int, int], dict[int, int]] = {}


def install(recorder: Recorder) -> None:
    """Patch ``threading.Condition`` and ``queue.Queue``; watch the main thread."""
    import queue
    import threading

    watched.add(threading.main_thread().ident or 0)

    def record(start_ns: int, by: int, queue: int = -1, call: int = 0) -> None:
        waits()
        recorder.records.append((BLOCKED_ROW, thread_id(), start_ns, monotonic_ns(), by or -1, queue, call))

    waits = recorder.own_times.passed(_WAIT_NS)

    def make_wait(original: Any) -> Any:
        def wait(self: Any, timeout: float | None = None) -> Any:
            thread, key, start_ns = get_ident(), id(self), 0
            if thread in watched and not recorder.over:
                start_ns = monotonic_ns()
                _wakers[key] = 0
            try:
                return original(self, timeout)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if start_ns:
                    by = _wakers.pop(key, 0)
                    if thread in _in_queue:
                        _in_queue[thread] = by
                    else:
                        record(start_ns, by)

        # In profiles with stacks, threads that wait as long as the program runs are in `threading`.
        pass_for(wait, original)
        return wait

    def make_notify(original: Any) -> Any:
        passes = recorder.own_times.passed(_PASSED_NS)

        def notify(self: Any, n: int = 1) -> None:
            passes()
            if _wakers and id(self) in _wakers:
                _wakers[id(self)] = thread_id()
                watched.add(get_ident())
            try:
                original(self, n)
            except BaseException as error:
                hide_frame(error)
                raise

        return notify

    def make_call(original: Any) -> Any:
        call = CALLS.index(original.__name__)

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            thread, start_ns = get_ident(), 0
            if thread in watched and not recorder.over:
                start_ns = monotonic_ns()
                _in_queue[thread] = 0  # a signal handler may raise at each call: none follows before `try`
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                if start_ns:
                    _in_queue.pop(thread, None)
                    _polled.setdefault((thread, call), {}).setdefault(id(self), start_ns)
                raise
            if start_ns:
                start_ns = _polled.pop((thread, call), {}).get(id(self), start_ns)
                record(start_ns, _in_queue.pop(thread, 0), id(self), call)
            return result

        return called

    patch(threading, "_make_invoke_excepthook", partial(_noting_failures, recorder))
    patch(threading.Condition, "wait", make_wait)
    patch(threading.Condition, "notify", make_notify)
    patch(queue.Queue, "get", make_call)
    patch(queue.Queue, "put", make_call)


def _noting_failures(recorder: Recorder, make: Any) -> Any:
    """Have threads that start from now on record what they raise, then call the program's hook as ever.

    `threading.excepthook` itself stays the program's: it may replace it, or ask whether it is Python's own.
    """

    def make_noting() -> Any:
        invoke = make()

        def invoke_excepthook(thread: Any) -> None:
            try:
                recorder.failures.note_thread(thread.name)
            except ours(Exception) as problem:
                recorder.absorb(problem, "recording a thread's failure")
            invoke(thread)

        return invoke_excepthook

    return make_noting


def watch() -> None:
    """Watch this thread, too: it takes batches from a loader."""
    watched.add(get_ident())


def trained() -> None:
    """Watch this thread; what it asked of queues in vain so far, it did not wait for."""
    thread = get_ident()
    watched.add(thread)
    _polled.pop((thread, _GET), None)


def after_fork_in_child() -> None:
    """Watch no thread of the parent's in a forked child."""
    watched.clear()
    _wakers.clear()
    _in_queue.clear()
    _polled.clear()
