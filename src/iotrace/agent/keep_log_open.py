"""Keeping the program's descriptors and dftracer's apart, and the records across an exec.

dftracer writes to the number of its log without asking whether it still means that file. A program that
closes all descriptors, as daemons do, would get dftracer's lines into the file that it opens next: the log
alone stays open, whatever the program closes.
"""

from __future__ import annotations

import os
from fcntl import F_GETFL, fcntl
from stat import S_ISREG

from iotrace.agent.patching import hide_frame, patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder


def protect(log_directory: str) -> None:
    """Patch ``os.close`` and ``os.closerange`` to leave files below `log_directory` open."""
    prefix = log_directory.rstrip("/") + "/"
    elsewhere = _shared_memory_device(log_directory)
    fstat, read_only, access = os.fstat, os.O_RDONLY, os.O_ACCMODE

    def is_log(descriptor: Any) -> bool:
        try:
            # readlink in /proc costs 10 us, these questions 1: data files are read only, torch closes one
            # piece of shared memory for each tensor of a batch, all else are mostly pipes and sockets.
            if fcntl(descriptor, F_GETFL) & access == read_only:
                return False
            status = fstat(descriptor)
            if not S_ISREG(status.st_mode) or status.st_dev == elsewhere:
                return False
            return os.readlink(f"/proc/self/fd/{descriptor}").startswith(prefix)
        except (OSError, TypeError, ValueError, OverflowError):  # no descriptor: os.close says so
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

    def make_closerange(original: Any) -> Any:
        def closerange(fd_low: Any, fd_high: Any, /) -> None:
            try:
                logs = sorted(number for number in map(int, os.listdir("/proc/self/fd")) if is_log(number))
            except OSError:
                logs = []
            try:
                for log in logs:
                    if fd_low <= log < fd_high:
                        original(fd_low, log)
                        fd_low = log + 1
                original(fd_low, fd_high)
            except BaseException as error:
                hide_frame(error)
                raise

        return closerange

    patch(os, "close", make_close)
    patch(os, "closerange", make_closerange)


def _shared_memory_device(log_directory: str) -> int:
    """The device on which no log can be; -1 where the logs themselves lie in shared memory."""
    try:
        device = os.stat("/dev/shm").st_dev
        return -1 if os.stat(log_directory).st_dev == device else device
    except OSError:
        return -1


def close_before_exec(recorder: Recorder) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all of its kind use: what was recorded is written first."""

    def make(original: Any) -> Any:
        def execute(*args: Any, **kwargs: Any) -> Any:
            recorder.close()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                recorder.reopen()
                hide_frame(error)
                raise

        return execute

    patch(os, "execv", make)
    patch(os, "execve", make)
