"""Record who wakes the threads that train: a batch that another thread made comes by a queue or a future.

``queue.Queue``, ``threading.Event`` and ``concurrent.futures`` block in ``threading.Condition.wait``. The
waits of the main thread, of threads that train and of threads that take batches are recorded, each with the
thread that ended it. ``queue.SimpleQueue`` is written in C and cannot be seen.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import thread_id

watched: set[int] = set()  # threads, by `get_ident`
_wakers: dict[int, int] = {}  # by a condition's id: the thread that notified it, 0 so far


def install(recorder: Recorder) -> None:
    """Patch ``threading.Condition``; watch the main thread."""
    import threading

    watched.add(threading.main_thread().ident or 0)

    def make_wait(original: Any) -> Any:
        def wait(self: Any, timeout: float | None = None) -> Any:
            if get_ident() not in watched or recorder.over:
                try:
                    return original(self, timeout)
                except BaseException as error:
                    hide_frame(error)
                    raise
            key, start_ns = id(self), monotonic_ns()
            _wakers[key] = 0
            try:
                return original(self, timeout)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                recorder.records.append(
                    {
                        "type": "blocked",
                        "tid": thread_id(),
                        "start_ns": start_ns,
                        "end_ns": monotonic_ns(),
                        "by": _wakers.pop(key, 0) or None,
                    }
                )

        return wait

    def make_notify(original: Any) -> Any:
        def notify(self: Any, n: int = 1) -> None:
            if _wakers and id(self) in _wakers:
                _wakers[id(self)] = thread_id()
            try:
                original(self, n)
            except BaseException as error:
                hide_frame(error)
                raise

        return notify

    patch(threading.Condition, "wait", make_wait)
    patch(threading.Condition, "notify", make_notify)


def watch() -> None:
    """Watch this thread, too: it trains, or takes batches from a loader."""
    watched.add(get_ident())


def forget_threads() -> None:
    """Watch no thread of the parent's in a forked child."""
    watched.clear()
    _wakers.clear()
