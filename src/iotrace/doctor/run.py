"""All checks at once, each in a thread of its own: one that hangs (a dead mount) is told, not waited for."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

from iotrace.doctor.results import Check, CheckError, unknown
from iotrace.errors import IotraceError

# What one look may take; `iotrace doctor` is to answer within 5 s.
PATIENCE_SECONDS = 4.2

_NOT_LOOKED_AT = "it could not be looked at"
_REPORT = "look whether /proc and /sys are whole here; if they are, please report this"
_ASK_BY_HAND = "a mount or a driver may not answer: try df, or nvidia-smi"
_REMEDIES = {
    errno.EMFILE: "ulimit -n 1024",
    errno.ENFILE: "this machine has no more open files: end what holds them",
    errno.EAGAIN: "ulimit -u unlimited, or a larger pids.max of the control group",
    errno.ENOMEM: "ulimit -v unlimited, or more memory",
    errno.ENOSPC: "free some space, or set TMPDIR to another directory",
    errno.EROFS: "set TMPDIR to a directory that can be written",
}
_NO_THREAD = "ulimit -u and -v unlimited, or a larger pids.max of the control group"

Named = tuple[str, Callable[[], "Check | list[Check]"]]


class UsageError(IotraceError):
    """What the user named cannot be looked at: raised by a check, it ends the visit at once."""


def run_checks(checks: Sequence[Named], seconds: float = PATIENCE_SECONDS) -> list[Check]:
    """The results of `checks`, in their order, within about `seconds`.

    A check that raises or does not return in time is ``unknown``, with the reason. UsageError is passed on.
    """
    deadline = time.monotonic() + seconds
    found: dict[int, list[Check]] = {}
    ended: queue.SimpleQueue[tuple[int, list[Check] | UsageError]] = queue.SimpleQueue()

    def one(place: int, identity: str, check: Callable[[], Check | list[Check]]) -> None:
        try:
            result = check()
            ended.put((place, result if isinstance(result, list) else [result]))
        except UsageError as error:
            ended.put((place, error))
        except Exception as error:  # whatever is odd about this machine, the other checks count
            ended.put((place, [_failed(identity, error)]))

    started = 0
    for place, (identity, check) in enumerate(checks):
        try:
            # Daemons: a thread that is stuck in the kernel must not keep the command from ending.
            threading.Thread(target=one, args=(place, identity, check), daemon=True).start()
            started += 1
        except RuntimeError as error:  # processes or memory are limited
            found[place] = [unknown(identity, _NOT_LOOKED_AT, str(error), _NO_THREAD)]
    for _ in range(started):
        try:
            place, result = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(result, UsageError):
            raise result
        found[place] = result
    late = f"it did not end within {seconds:.1f} s"
    return [
        result
        for place, (identity, _) in enumerate(checks)
        for result in found.get(place, [unknown(identity, "no answer", late, _ASK_BY_HAND)])
    ]


def _failed(identity: str, error: Exception) -> Check:
    """``unknown``; the remedy is that of the operating system's reason, where there is one."""
    if isinstance(error, CheckError):
        return unknown(identity, _NOT_LOOKED_AT, str(error), error.remedy)
    if isinstance(error, FileNotFoundError) and not error.filename and _is_deleted(os.curdir):
        return unknown(
            identity, _NOT_LOOKED_AT, "the current directory was deleted", "cd to one that is there"
        )
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    if number in _REMEDIES:
        return unknown(identity, _NOT_LOOKED_AT, os.strerror(number), _REMEDIES[number])
    return unknown(identity, "the check failed", f"{type(error).__name__}: {error}", _REPORT)


def _is_deleted(directory: str) -> bool:
    """Whether it has no name any more; it can still be looked at then."""
    try:
        return os.stat(directory).st_nlink == 0
    except FileNotFoundError:
        return True
