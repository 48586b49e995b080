"""Processes and temporary directories of the checks. Nothing of them is left, however the doctor ends."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from iotrace.doctor.results import CheckError

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
