"""Keep dftracer's log open whatever the program closes, and write the records before an exec.

dftracer writes to the descriptor of its log without a check that it is still that file. A program that
closes all descriptors, as daemons do, would get dftracer's lines into the file that it opens next.
"""

from __future__ import annotations

import os
import sys
from fcntl import F_GETFL, fcntl
from posix import O_ACCMODE, O_RDONLY, closerange, fstat, listdir, readlink, stat
from stat import S_ISREG
from time import monotonic_ns

from iotrace.agent.patching import hide_frame, observe, patch
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder


def protect(log_directory: str, recorder: Recorder) -> None:
    """Patch ``os.close`` and ``os.closerange`` to leave files below `log_directory` open."""
    prefix = log_directory.rstrip("/") + "/"
    elsewhere = _shared_memory_device(log_directory)

    def is_log(descriptor: Any) -> bool:
        try:
            # readlink in /proc costs 10 us, these calls 1: data files are read only, torch closes one
            # piece of shared memory for each tensor of a batch, the rest are mostly pipes and sockets.
            if fcntl(descriptor, F_GETFL) & O_ACCMODE == O_RDONLY:
                return False
            status = fstat(descriptor)
            if not S_ISREG(status.st_mode) or status.st_dev == elsewhere:
                return False
            return readlink(f"/proc/self/fd/{descriptor}").startswith(prefix)
        except ours(OSError, TypeError, ValueError, OverflowError):  # no descriptor: os.close says so
            return False

    def make_close(original: Any) -> Any:
        def close(fd: Any) -> None:
            if is_log(fd):
                return
            try:
                original(fd)
            except BaseException as error:
                hide_frame(error)
                raise

        return close

    def sparing(args: list[Any], _: dict[str, Any]) -> None:
        low, high = args
        for log in sorted(number for number in map(int, listdir("/proc/self/fd")) if is_log(number)):
            if low <= log < high:
                closerange(low, log)
                low = log + 1
        args[0] = low

    patch(os, "close", make_close)
    observe(os, "closerange", recorder, "sparing dftracer's log", before=sparing)


def _shared_memory_device(log_directory: str) -> int:
    """Return the device of shared memory, where no log is; -1 where the logs themselves are there."""
    try:
        device = stat("/dev/shm").st_dev
        return -1 if stat(log_directory).st_dev == device else device
    except ours(OSError):
        return -1


def close_before_exec(recorder: Recorder, log_directory: str) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all others use: write what was recorded before."""

    def leaving(*_: Any) -> None:
        recorder.close()
        _set_aside(log_directory)

    def still_here(*_: Any) -> None:
        recorder.reopen()

    for name in ("execv", "execve"):
        observe(os, name, recorder, "writing before an exec", before=leaving, ended=still_here)


def flush_if_interrupted(log_directory: str, recorder: Recorder) -> None:
    """Have dftracer write its buffer where Python will end itself by SIGINT, past C's exit handlers."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        try:
            from iotrace.agent.dftracer_compat.flush import flush  # few programs need it

            flush(log_directory)
        except ours(Exception) as error:
            recorder.absorb(error, "writing after an interrupt")


def _set_aside(log_directory: str) -> None:
    """Write dftracer's buffer, and rename the log.

    The program that is executed has the same pid, goes on in the log of that name, and deletes it if it makes
    fewer than five calls itself.
    """
    from iotrace.agent.dftracer_compat.flush import find_log, flush

    if flush(log_directory):
        log = find_log(log_directory)
        os.set_inheritable(log, False)  # the next program has a log of its own
        path = os.readlink(f"/proc/self/fd/{log}")
        stem = "/" + path.removesuffix(".pfw")  # two slashes: dftracer does not trace it
        os.rename("/" + path, f"{stem}-{monotonic_ns():x}.pfw")
