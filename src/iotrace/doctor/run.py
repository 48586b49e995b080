"""Run all checks at once, a thread each: one that hangs (a dead mount) is unknown, not waited for.

Processes and temporary directories of the checks. Nothing of them is left, however the doctor ends.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from iotrace.doctor.results import Check, CheckError, unknown
from iotrace.errors import IotraceError

# For all processes to end: one that was killed is gone at once, unless the kernel does not answer.
_CLOSING_SECONDS = 1.0


class ClosedError(Exception):
    """The sandbox is closed: a check that is late may start nothing more."""


class Sandbox:
    """Gives checks processes and directories, from any thread, and takes them all back on `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: set[int] = set()
        self._in_use = 0
        self._closed = False

    def close(self) -> None:
        """Kill every process group, and wait until the checks that used them have cleaned up."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        with self._changed:
            self._closed = True
            for group in self._groups:
                _kill(group)
            while self._in_use and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Make an empty directory, removed afterwards.

        Raises:
            CheckError: there is no temporary directory that can be written.
            ClosedError: the sandbox is closed.
        """
        with (
            self._used(),
            tempfile.TemporaryDirectory(
                prefix="iotrace-doctor-", dir=_temporary_directory(), ignore_cleanup_errors=True
            ) as path,
        ):
            yield Path(path)

    def run(
        self, line: list[str], environment: dict[str, str], seconds: float, directory: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run the command `line` in `directory`, and return how it ended.

        Raises:
            subprocess.TimeoutExpired: after `seconds`; it and all that it started are killed.
            ClosedError: the sandbox is closed.
        """
        with self._used():
            process = subprocess.Popen(
                line,
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # a script that starts the interpreter leaves no child behind
            )
            with self._changed:
                self._groups.add(process.pid)
                if self._closed:
                    _kill(process.pid)
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                _kill(process.pid)
                output, errors = process.communicate()
                raise subprocess.TimeoutExpired(line, seconds, output, errors) from None
            finally:
                with self._changed:
                    self._groups.discard(process.pid)
            return subprocess.CompletedProcess(line, process.returncode, output, errors)

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise ClosedError("the sandbox is closed")
            self._in_use += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_use -= 1
                self._changed.notify_all()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _temporary_directory() -> str:
    """Return tempfile's directory, but not its last resort: the current directory is the user's."""
    asked = [os.path.abspath(path) for path in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")) if path]
    try:
        directory = tempfile.gettempdir()
        current = os.getcwd()
    except FileNotFoundError:  # none can be written, or the current directory was deleted
        directory = current = os.curdir
    if directory == current and directory not in asked:
        raise CheckError("there is no temporary directory that can be written", "set TMPDIR to one that can")
    return directory


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

    The checks that `longer` names are given more seconds; `waiting` gets those that still run then. A
    check that raises or does not return in time is ``unknown``, with the reason.

    Raises:
        BadDataError: a check raised it.
    """
    began = time.monotonic()
    patience = [max(seconds, longer.get(identity, 0.0)) for identity, _ in checks]
    results: dict[int, list[Check]] = {}
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
            results[index] = [unknown(identity, _NOT_LOOKED_AT, str(error), _REMEDIES[errno.EAGAIN])]
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
        results[index] = result
        pending.discard(index)
    return [
        result
        for index, (identity, _) in enumerate(checks)
        for result in (results[index] if index in results else [_late(identity, patience[index])])
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
