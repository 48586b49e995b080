"""How commands and iotrace end: after a signal no child is left, and no half of a cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 20.0


class TerminatedError(KeyboardInterrupt):
    """By SIGTERM or SIGHUP, which reached this process alone."""


@contextmanager
def terminated_by_signals() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise `TerminatedError` in the main thread, unless they have a handler."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    with _handled(_TERMINATING, terminate, only_default=True):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep signals that end a program from stopping the main thread: for a cleanup that has to finish."""
    with _handled((signal.SIGINT, *_TERMINATING), signal.SIG_IGN):
        yield


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...],
    handler: signal.Handlers | object,
    only_default: bool = False,
) -> Iterator[None]:
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
        # One that is ignored (nohup) stays so.
        before = {number: old for number, old in before.items() if not only_default or old == signal.SIG_DFL}
    for number in before:
        signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str], at_once: bool = True) -> int:
    """End a command and what it started; it may clean up first. Without `at_once` it knows already.

    Returns its exit code; waits a minute at most.
    """
    with undisturbed():
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_PATIENCE_S)
        process.terminate()
        try:
            return process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            for pid in [*_descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return process.wait()


def _descendants(pid: int) -> list[int]:
    """Return the processes below one, as far as they have not lost their parents."""
    pids = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                pids += [int(child) for child in children.read().split()]
    return [each for child in pids for each in (*_descendants(child), child)]
