"""Signals that end a command become an exception, so that it can clean up before it ends by them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _EndedError(BaseException):
    """By the signal of this number. No Exception: a check's guard must not take it for its own."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP unwind the main thread; then the process dies of them after all."""

    def end(number: int, frame: FrameType | None) -> None:
        for ending in _ENDING:  # a second one must not stop the cleaning
            signal.signal(ending, signal.SIG_IGN)
        raise _EndedError(number)

    # One that is ignored (nohup) stays so.
    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except _EndedError as ended:
        (number,) = ended.args
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
