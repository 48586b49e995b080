"""Tell our own errors from the program's, in processes that are traced.

A signal handler of the program may raise in any line of ours, and what it raises is not ours to keep: a
TimeoutError is an OSError. Hence each ``except`` that keeps an error asks by `ours`, and keeps no other.
"""

from __future__ import annotations

import sys
from _signal import NSIG  # type: ignore[import-not-found]

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, TypeVar

    Error = TypeVar("Error", bound=Exception)

_MOST_WRAPPERS = 8
# No thread holds a lock of ours as long, but one that writes a trace. Where none is left that could release
# it, as in a child of a fork in C, the process shall end all the same.
_LOCK_SECONDS = 2.0

# The signals that have or had a handler, and by its id the code of each.
handled: set[int] = set()
_handlers: dict[int, CodeType] = {}


def remember(number: int, handler: Any) -> None:
    """Know what the `handler` of a signal raises for the program's, from now on.

    Nothing is known of a handler in C; it is noticed only where it raises what is no `Exception`.
    """
    if callable(handler) and type(number) is int and 0 < number < NSIG:
        handled.add(number)
    for _ in range(_MOST_WRAPPERS):
        code = getattr(handler, "__code__", None)
        if code is not None:
            _handlers[id(code)] = code
            return
        # A functools.partial, or an object of a class that can be called.
        handler = getattr(handler, "func", None) or type(handler).__call__


def ours(*kinds: type[Error]) -> tuple[type[Error], ...]:
    """Return `kinds` for an ``except`` clause; none of them where the error that is raised is the program's.

    That one then goes on to the program, without the frames of ours in which the signal has come.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, Exception):
        return ()
    if _handlers:
        traceback = error.__traceback__
        while traceback is not None:
            if id(traceback.tb_frame.f_code) in _handlers:
                error.__traceback__ = traceback
                return ()
            traceback = traceback.tb_next
    return kinds


def while_held(lock: Any, act: Callable[[], None]) -> None:
    """Call ``act()`` with the `RLock` held, or not at all where another thread keeps it for too long."""
    try:
        if lock.acquire(True, _LOCK_SECONDS):
            act()
    finally:  # also where a signal handler of the program raises
        if lock._is_owned():
            lock.release()
