"""The command as a child process: its signals, its exit code as a shell gives it."""

from __future__ import annotations

import errno
import os
import shutil
import signal

from iotrace.errors import LaunchError

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
_FROM_KERNEL = 128  # si_code SI_KERNEL: a key on the terminal, which reached the child too


def find(command: list[str], path: str | None) -> str:
    """The program that ``command[0]`` names on `path`; LaunchError 127 or 126 as a shell's."""
    name = command[0]
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if "/" in name and os.path.isdir(name):
        raise LaunchError(f"{name} is a directory", "name a program", NOT_EXECUTABLE)
    if os.path.exists(name) and "/" in name:
        raise LaunchError(
            f"{name} is not executable", f"chmod +x {name}, or put its interpreter before it", NOT_EXECUTABLE
        )
    hint = f"did you mean ./{name} or python {name}?" if os.path.exists(name) else "check its name and PATH"
    raise LaunchError(f"{name}: command not found", hint, NOT_FOUND)


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run `command` to its end and return its exit code, 128 + N where signal N ended it.

    Signals sent to us reach it; those of the terminal reach it by themselves.
    """
    waited = _FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        try:
            pid = os.posix_spawnp(command[0], command, environment, setsigmask=before, setsigdef=_RESTORED)
        except OSError as error:
            code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
            raise LaunchError(f"{command[0]}: {error.strerror}", "", code) from error
        return _wait(pid, waited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD or received.si_code == _FROM_KERNEL:
            continue
        try:
            os.kill(pid, received.si_signo)
        except ProcessLookupError:
            pass
