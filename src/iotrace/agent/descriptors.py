"""Keeping the program's descriptors and dftracer's apart, and the records across an exec.

dftracer writes to the number of its log without asking whether it still means that file. A program that
closes all descriptors, as daemons do, would get dftracer's lines into the file that it opens next: the log
alone stays open, whatever the program closes.
"""

from __future__ import annotations

import os

from iotrace.agent.patching import hide_frame, patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recorder import Recorder


def protect(log_directory: str) -> None:
    """Patch ``os.close`` and ``os.closerange`` to leave files below `log_directory` open."""
    prefix = log_directory.rstrip("/") + "/"

    def is_log(descriptor: Any) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}").startswith(prefix)
        except OSError:
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
                logs = sorted(int(name) for name in os.listdir("/proc/self/fd") if is_log(name))
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


def close_before_exec(recorder: Recorder) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all of its kind use: what was recorded is written first."""

    def make(original: Any) -> Any:
        def execute(*args: Any) -> Any:
            recorder.close()
            try:
                return original(*args)
            except BaseException as error:
                recorder.reopen()
                hide_frame(error)
                raise

        return execute

    patch(os, "execv", make)
    patch(os, "execve", make)
