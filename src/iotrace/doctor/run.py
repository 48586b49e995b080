"""Run all checks at once, a thread each: one that hangs (a dead mount) is unknown, not waited for."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from iotrace.doctor.results import Check, CheckError, unknown
from iotrace.errors import IotraceError

# For all checks together: `iotrace doctor` is to answer within 5 s, where torch lets it.
PATIENCE_SECONDS = 4.2
TORCH_SECONDS = 60.0  # its first import, from a network file system, may take most of that

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


def run_checks(
    checks: Sequence[Named],
    seconds: float = PATIENCE_SECONDS,
    longer: Mapping[str, float] = MappingProxyType({}),
    waiting: Callable[[list[str]], None] = lambda _: None,
) -> list[Check]:
    """Return the results of `checks`, in their order, within about `seconds`.

    The checks that `longer` names are given more seconds; `waiting` is told which of them still run then. A
    check that raises or does not return in time is ``unknown``, with the reason.

    Raises:
        BadDataError: a check raised it.
    """
    began = time.monotonic()
    patience = [max(seconds, longer.get(identity, 0.0)) for identity, _ in checks]
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

    pending: set[int] = set()
    for index, (identity, check) in enumerate(checks):
        try:
            # Daemons: a thread that is stuck in the kernel must not keep the command from ending.
            threading.Thread(target=run, args=(index, identity, check), daemon=True).start()
            pending.add(index)
        except RuntimeError as error:  # processes or memory are limited
            found[index] = [unknown(identity, _NOT_LOOKED_AT, str(error), _REMEDIES[errno.EAGAIN])]
    told = False
    while pending:
        until = began + max(patience[index] for index in pending)
        if not told:
            until = min(until, began + seconds)
        try:
            index, result = ended.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            late = [index for index in pending if patience[index] > seconds]
            if told or not late:
                break
            told = True
            waiting([checks[index][0] for index in sorted(late)])
            continue
        if isinstance(result, BadDataError):
            raise result
        found[index] = result
        pending.discard(index)
    return [
        result
        for index, (identity, _) in enumerate(checks)
        for result in (found[index] if index in found else [_late(identity, patience[index])])
    ]


def _late(identity: str, seconds: float) -> Check:
    return unknown(identity, "no answer", f"it did not end within {seconds:.1f} s", _ASK_BY_HAND)


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
