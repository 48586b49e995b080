"""Borders in time that no burst of POSIX calls crosses: where spans, fetches and waits begin and end.

The preloaded recorder (capture/) joins calls that follow each other quickly. It compares one number of the
process, `border`, with the one when the burst began: writing any other number there ends the bursts of all
threads.

It also counts how long each thread has waited for the lock of Python's interpreter, and lets one ask for
it at once.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import LOCKED_ROW, POSIX_VARIABLE, TURN_AT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from iotrace.agent.recording.thread_clocks import Border, Thread

LONG_WAIT_NS = 100_000  # for the interpreter's lock
_border: Border | None = None
_find_waits: Any = None  # the recorder's function
_asks: Any = None  # likewise


def find_border() -> Border:
    """Return what holds the number in its first place; a list that nobody reads without a recorder."""
    global _border
    if _border is None:
        _border = [0]
        if os.environ.get(POSIX_VARIABLE):
            try:
                # Some ms of import, in processes that read data alone: numpy and torch import it, too.
                from ctypes import CDLL, c_uint64

                border = c_uint64.in_dll(CDLL(None), "iotrace_border")
                _border = memoryview(border).cast("B").cast("Q")
            except ours(Exception):  # the library is not preloaded: a program may drop LD_PRELOAD
                pass
    return _border


def find_lock_waits() -> Border | None:
    """Return what holds in its first place how long this thread has waited for the interpreter's lock, in ns.

    Without a recorder that stays 0; None: ask again. Any thread asks, hence nothing is imported for it: a
    child that is forked meanwhile would wait for the import's lock for good.
    """
    global _find_waits
    if not os.environ.get(POSIX_VARIABLE):
        return [0]
    try:
        if _find_waits is None:
            ctypes: Any = sys.modules.get("ctypes")
            if not hasattr(ctypes, "c_uint64"):  # nobody has imported it whole
                return None
            find = ctypes.PyDLL(None).iotrace_interpreter_waits
            find.restype = ctypes.POINTER(ctypes.c_uint64)
            _find_waits = find
        return memoryview(_find_waits().contents).cast("B").cast("Q")
    except ours(Exception):  # likewise; or it does not know this interpreter
        return [0]


def find_lock_asks() -> Callable[[int], int] | None:
    """Return what makes this thread ask for the interpreter's lock at once (1), or wait for it as ever (0).

    None without a recorder, where it does not know the interpreter, as long as nobody has imported ctypes.
    """
    global _asks
    if _asks is None and os.environ.get(POSIX_VARIABLE):
        ctypes: Any = sys.modules.get("ctypes")
        try:
            if hasattr(ctypes, "c_uint64"):  # whole
                asks = ctypes.PyDLL(None).iotrace_interpreter_asks
                _asks = asks if asks(0) else False
        except ours(Exception):
            _asks = False
    return _asks or None


def lock_wait_ns() -> int:
    """Return how long this thread has waited for the interpreter's lock so far; 0 where nobody asks."""
    waits = current.thread.lock_waits
    return 0 if waits is None else waits[0]


def note_queueing(before_ns: int, recorder: Any) -> None:
    """Record how long this thread waited for the interpreter's lock in a task that is not followed."""
    thread = current.thread
    if recorder.over:
        return
    if thread.lock_waits is None:
        thread.lock_waits = find_lock_waits()
    elif thread.lock_waits[0] - before_ns >= LONG_WAIT_NS:
        waited_ns, now_ns = thread.lock_waits[0] - before_ns, monotonic_ns()
        recorder.records.append((LOCKED_ROW, thread.tid, now_ns - waited_ns, now_ns, waited_ns, -1))


def note_lock_wait(
    before_ns: int, asked_ns: int, recorder: Any, thread: Thread | None = None, taken_ns: int = 0
) -> None:
    """Record how long this thread waited for the interpreter's lock since it asked for an item, and before.

    What it works between two items is of its loop.
    """
    thread = thread or current.thread
    if thread.lock_waits is None:
        thread.lock_waits = find_lock_waits()
        return
    now_ns, sum_ns = taken_ns or monotonic_ns(), thread.lock_waits[0]
    if sum_ns - before_ns >= LONG_WAIT_NS:
        recorder.records.append((LOCKED_ROW, thread.tid, asked_ns, now_ns, sum_ns - before_ns, -1))
    took_ns, then_ns = thread.took
    if took_ns and before_ns - then_ns >= LONG_WAIT_NS:
        worked = (LOCKED_ROW, thread.tid, took_ns, asked_ns, before_ns - then_ns, recorder.text(TURN_AT))
        recorder.records.append(worked)
    thread.took = now_ns, sum_ns
