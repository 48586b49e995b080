"""Errors that a user can cause. `iotrace.cli` turns each into one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class IotraceError(Exception):
    """What went wrong, and what to do about it.

    `exit_code` is iotrace's own: 1 for a failed command, 2 for wrong usage (`UsageError`), 125 where the
    program was not started (`LaunchError`). `output` is what the user's program said last, in lines.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "", output: str = "") -> None:
        super().__init__(message)
        self.remedy, self.output = remedy, output


class UsageError(IotraceError):
    """The command line asks for something that cannot be done: nothing was started, the exit code is 2."""

    exit_code = 2


class SessionError(IotraceError):
    """A path that should hold a session does not hold one that this version can read."""


class LaunchError(IotraceError):
    """The program was not started."""

    def __init__(self, message: str, remedy: str = "", exit_code: int = 125) -> None:
        super().__init__(message, remedy)
        self.exit_code = exit_code


class TraceError(IotraceError):
    """A file that should hold a trace does not hold one that can be read."""


@contextmanager
def writing(path: Path, remedy: str) -> Iterator[None]:
    """Write `path` within it; IotraceError, with `remedy`, where the system refuses that."""
    try:
        yield
    except OSError as error:
        raise IotraceError(f"cannot write {path}: {error.strerror}", remedy) from error


@contextmanager
def replacing(path: Path, remedy: str) -> Iterator[Path]:
    """Write the file that is yielded; then it takes the place of `path`, whose old content stays until then.

    A device, a pipe or a directory at `path` is written as it is: its writer says what does not fit.
    """
    with writing(path, remedy):
        real = path.resolve()  # a link stays one
        there = real.exists()
        if (there and not real.is_file()) or not os.access(real.parent, os.W_OK):
            yield path
            return
        temporary = real.with_name(f".iotrace-{os.getpid()}")
        try:
            yield temporary
            if there:
                temporary.chmod(stat.S_IMODE(real.stat().st_mode))
            temporary.replace(real)
        finally:
            temporary.unlink(missing_ok=True)


def what_failed(error: OSError) -> str:
    """Say what the system refused, without its number."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno in _OUTPUT:
        return f"the output cannot be written: {error.strerror}"
    return error.strerror or str(error)
