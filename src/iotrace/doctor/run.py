"""Run all checks at once, a thread each: one that hangs (a dead mount) is unknown, not waited for."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

from iotrace.doctor.results import Check, CheckError, unknown
from iotrace.errors import IotraceError

# For all checks together; `iotrace doctor` is to answer within 5 s.
PATIENCE_SECONDS = 4.2

_NOT_LOOKED_AT = "it could not be looked at"
_REPORT = "look whether /proc and /sys are whole here; if they are, please report this"
_ASK_BY_HAND = "a mount or a driver may not answer: try df, or nvidia-smi"
_REMEDIES = {
    errno.EMFILE: "ulimit -n 1024",
    errno.EAGAIN: "ulimit -u unlimited, or a larger pids.max of the control group",
    errno.ENOMEM: "ulimit -v unlimited, or more memory",
    errno.ENOSPC: "free some space, or set TMPDIR to another directory",
}

Named = tuple[str, Callable[[], "Check | list[Check]"]]


class BadDataError(IotraceError):
    """The data that the user named cannot be looked at: raised by a check, it ends all checks at once."""


def run_checks(checks: Sequence[Named], seconds: float = PATIENCE_SECONDS) -> list[Check]:
    """Return the results of `checks`, in their order, within about `seconds`.

    A check that raises or does not return in time is ``unknown``, with the reason.

    Raises:
        BadDataError: a check raised it.
    """
    deadline = time.monotonic() + seconds
    found: dict[int, list[Check]] = {}
    ended: queue.SimpleQueue[tuple[int, list[Check] | BadDataError]] = queue.SimpleQueue()

    def run(index: int, identity: str, check: Callable[[], Check | list[Check]]) -> None:
        try:
            result = check()
            ended.put((index, result if isinstance(result, list) else [result]))
        except BadDataError as error:
            ended.put((index, error))
        except Exception as error:  # whatever is odd about this machine, the other checks go on
            ended.put((index, [_failed(identity, error)]))

    started = 0
    for index, (identity, check) in enumerate(checks):
        try:
            # Daemons: a thread that is stuck in the kernel must not keep the command from ending.
            threading.Thread(target=run, args=(index, identity, check), daemon=True).start()
            started += 1
        except RuntimeError as error:  # processes or memory are limited
            found[index] = [unknown(identity, _NOT_LOOKED_AT, str(error), _REMEDIES[errno.EAGAIN])]
    for _ in range(started):
        try:
            index, result = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(result, BadDataError):
            raise result
        found[index] = result
    late = f"it did not end within {seconds:.1f} s"
    return [
        result
        for index, (identity, _) in enumerate(checks)
        for result in found.get(index, [unknown(identity, "no answer", late, _ASK_BY_HAND)])
    ]


def _failed(identity: str, error: Exception) -> Check:
    """Make an ``unknown`` of `error`, with the remedy for the system's reason where one is known."""
    if isinstance(error, CheckError):
        return unknown(identity, _NOT_LOOKED_AT, str(error), error.remedy)
    if isinstance(error, FileNotFoundError) and not error.filename:  # of getcwd
        return unknown(
            identity, _NOT_LOOKED_AT, "the current directory was deleted", "cd to one that is there"
        )
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if number in _REMEDIES:
        return unknown(identity, _NOT_LOOKED_AT, os.strerror(number), _REMEDIES[number])
    return unknown(identity, "the check failed", f"{type(error).__name__}: {error}", _REPORT)
