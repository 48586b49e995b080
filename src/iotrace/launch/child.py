"""Run the command as a child process: forward signals, return how it ended.

Distinguish a signal for the launcher alone from one for its whole process group.

A signal for the group (a key on the terminal, ``kill -- -PGID``, a batch system) has reached the command
already: forwarding it would deliver it twice. The monitor, a forked process that does nothing but wait for
signals in the same group, reports which of them it received.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import signal
import struct
import time
from contextlib import suppress

from iotrace.errors import LaunchError

# For the monitor to be scheduled and to report; a later report is about another signal.
_PATIENCE_S = 0.1
_SAME_SIGNAL_NS = 1_000_000_000
_REPORT = struct.Struct("<Bq")  # the signal, and when it came (CLOCK_MONOTONIC, ns)
_PARENT_CHECK_S = 1.0


class SignalMonitor:
    """A process in our process group that reports each of `signals`, which must be blocked already."""

    def __init__(self, signals: set[signal.Signals]) -> None:
        self._reading, writing = os.pipe()
        launcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _watch(signals, writing, launcher)
            finally:
                os._exit(0)
        os.close(writing)
        os.set_blocking(self._reading, False)
        self._reports: list[tuple[int, int]] = []

    def received(self, number: int) -> bool:
        """Say whether the monitor has just received signal `number`, too; waits a moment for its report."""
        now_ns = time.monotonic_ns()
        if self._take(number, now_ns):
            return True
        ready, _, _ = select.select([self._reading], [], [], _PATIENCE_S)
        if ready:
            self._reports += _REPORT.iter_unpack(os.read(self._reading, 64 * _REPORT.size))
        return self._take(number, now_ns)

    def _take(self, number: int, now_ns: int) -> bool:
        self._reports = [report for report in self._reports if report[1] > now_ns - _SAME_SIGNAL_NS]
        for report in self._reports:
            if report[0] == number:
                self._reports.remove(report)
                return True
        return False

    def close(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reading)


def _watch(signals: set[signal.Signals], writing: int, launcher: int) -> None:
    # An open copy of the program's output would keep its reader from seeing the end.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != writing:
            with suppress(OSError):  # that of the listing
                os.close(int(name))
    while os.getppid() == launcher:
        received = signal.sigtimedwait(signals, _PARENT_CHECK_S)
        if received is not None:
            os.write(writing, _REPORT.pack(received.si_signo, time.monotonic_ns()))


NOT_FOUND = 127
NOT_EXECUTABLE = 126

_FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
}
# Python ignores these at its start; a program must find them as its shell would have left them.
_RESTORED = [signal.SIGPIPE, signal.SIGXFSZ]
_NO_SCRIPT = 2  # what Python leaves with where it cannot open its script
_FROM_KERNEL = 128  # si_code SI_KERNEL: a key on the terminal, which reached the child too


def _script(command: list[str]) -> str | None:
    """Return the script that a command has Python run; None where it runs another program, or a module."""
    if not re.fullmatch(r"python[\d.]*t?", os.path.basename(command[0])):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-X", "-W"):
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif not re.fullmatch(r"-(X|W).+|-[bBdEiIOPqRsSuvx]+", word):  # -c, -m, and what only prints
            return None
    return None


def find(command: list[str], path: str | None) -> str:
    """Return the program that ``command[0]`` names on `path`.

    Raises:
        LaunchError: not found (127) or not executable (126), as in a shell; 2, as in Python, where that would
            run a script that does not exist.
    """
    name = command[0]
    program = shutil.which(name, path=path)
    if program is not None:
        script = _script(command)
        if script is not None and not os.path.lexists(script):
            raise LaunchError(
                f"{script} does not exist", "check its path, and the directory it is run in", _NO_SCRIPT
            )
        return program
    if "/" in name and os.path.isdir(name):
        raise LaunchError(f"{name} is a directory", "name a program", NOT_EXECUTABLE)
    if forbidden := shutil.which(name, mode=os.F_OK, path=path):
        remedy = f"chmod +x {forbidden}, or put its interpreter before it"
        raise LaunchError(f"{name} is not executable", remedy, NOT_EXECUTABLE)
    hint = f"did you mean ./{name} or python {name}?" if os.path.exists(name) else "check its name and PATH"
    raise LaunchError(f"{name}: command not found", hint, NOT_FOUND)


def script_interpreter(program: str, path: str | None) -> tuple[str, str | None]:
    """Return the name in the ``#!`` of `program`, and the program that it means.

    The name is empty without a ``#!``. The program is None where it does not exist or cannot be run.
    """
    try:
        with open(program, "rb") as file:
            line = file.readline(512)
    except OSError:
        return "", None
    if not line.startswith(b"#!"):
        return "", None
    # As the kernel splits it: a carriage return at its end is part of the name.
    words = [os.fsdecode(word) for word in re.split(rb"[ \t]+", line[2:].strip(b" \t\n")) if word]
    if not words:
        return "", None
    runs = os.path.isfile(words[0]) and os.access(words[0], os.X_OK)
    if runs and os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if named:
            return named[0], shutil.which(named[0], path=path)
    return words[0], words[0] if runs else None


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run `command` to its end and return its exit code, -N where signal N ended it.

    Signals sent to us alone reach it; those for the whole group have reached it by themselves.
    """
    waited = _FORWARDED | {signal.SIGCHLD}
    if (
        signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    ):  # the kernel would keep no exit code, and tell no end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    monitor = SignalMonitor(_FORWARDED)
    try:
        pid = _spawn(command, environment, before)
        _forward_early(pid, monitor)
        return _wait(pid, waited, monitor)
    finally:
        monitor.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(command: list[str], environment: dict[str, str], mask: set[signal.Signals | int]) -> int:
    def spawn(arguments: list[str]) -> int:
        return os.posix_spawnp(arguments[0], arguments, environment, setsigmask=mask, setsigdef=_RESTORED)

    try:
        try:
            return spawn(command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without #! line is the shell's, as under env(1) and execvp(3).
            return spawn(["/bin/sh", *command])
    except OSError as error:
        if error.errno == errno.ENOENT:  # `find` saw the file: what is missing is what its #! line names
            message = f"{command[0]}: its interpreter was not found"
            raise LaunchError(message, "check the first line of the file", NOT_FOUND) from error
        remedy = "check that it is a program for this machine"
        raise LaunchError(f"{command[0]}: {error.strerror}", remedy, NOT_EXECUTABLE) from error


def _forward_early(pid: int, monitor: SignalMonitor) -> None:
    """Forward what came before the command was there; sent to the group, too: it has not reached it."""
    for number in signal.sigpending() & _FORWARDED:
        signal.sigwait({number})
        monitor.received(number)
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait(pid: int, waited: set[signal.Signals], monitor: SignalMonitor) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD:
            continue
        for_group = monitor.received(received.si_signo)
        if for_group or received.si_code == _FROM_KERNEL:
            continue
        with suppress(ProcessLookupError):
            os.kill(pid, received.si_signo)
