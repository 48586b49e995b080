"""Let the sidecar ask this process for its Python stacks, should it hang: on a real-time signal, in C alone.

The handler takes no lock of the interpreter's, so it works also where a thread holds that for good. The
sidecar sends the signal at most once, and only while the descriptor still is the file that was opened here.
"""

from __future__ import annotations

import signal
from fcntl import F_DUPFD_CLOEXEC, fcntl
from posix import O_APPEND, O_CLOEXEC, O_CREAT, O_WRONLY, close, fstat, open

from iotrace.agent.patching import on_undo
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours
from iotrace.session.identity import read_proc
from iotrace.session.names import FILE_MODE, STACKS

_SIGNALS = 4  # from the last but one real-time signal downwards
_HIGH = 900  # descriptors count from 0 for the program: ours shifts none of its numbers

# The signal, its descriptor, and what file that is; also true in a forked child, which inherits all of it.
_registered: list[tuple[int, int, tuple[int, int]]] = []


def install(recorder: Recorder) -> None:
    """Register the handler, and record its signal and descriptor; nothing where no signal is free."""
    try:
        number = _registered[0][0] if _registered else _free_signal()
        if not number or not recorder.directory:
            return
        import faulthandler

        low = open(f"{recorder.directory}/{STACKS}", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, FILE_MODE)
        try:
            descriptor = fcntl(low, F_DUPFD_CLOEXEC, _HIGH)
        finally:
            close(low)
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
        if _registered:
            _close(_registered.pop())  # the parent's
        else:
            on_undo(_uninstall)
        _registered.append((number, descriptor, _file_of(descriptor)))
        recorder.records.append({"type": "stacks", "signal": number, "descriptor": descriptor})
    except ours(Exception):  # too few descriptors, or a Python without it: a hang is told without stacks
        return


def _uninstall() -> None:
    import faulthandler

    was = _registered.pop()
    faulthandler.unregister(was[0])
    _close(was)


def _file_of(descriptor: int) -> tuple[int, int]:
    status = fstat(descriptor)
    return status.st_dev, status.st_ino


def _close(was: tuple[int, int, tuple[int, int]]) -> None:
    """Close the descriptor, unless the program closed it, and has its number for a file of its own."""
    _, descriptor, file = was
    try:
        if _file_of(descriptor) == file:
            close(descriptor)
    except ours(OSError):
        return


def _free_signal() -> int:
    """Return a real-time signal that nothing in this process handles, blocks or ignores; 0 without one."""
    lines = read_proc("/proc/self/status", 8192).decode(errors="replace").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMAX - 1 - _SIGNALS, -1):
        if len(masks) == 3 and not any(mask >> (number - 1) & 1 for mask in masks):
            return number
    return 0
