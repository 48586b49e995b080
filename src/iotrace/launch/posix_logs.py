"""Make the files of POSIX calls private when the command has ended.

Their modes; and of dftracer's logs secrets on command lines. Our recorder's files hold no command lines, but
names of files and numbers.
"""

from __future__ import annotations

import mmap
import os
import re
from contextlib import suppress
from pathlib import Path

from iotrace.session import names
from iotrace.session.masks import is_secret, masked

# A log begins with the process's command line, its arguments joined by semicolons (SH). A program that is
# started leaves its path and first arguments as if they were names of files (FH), one after the other.
_NAMES = re.compile(rb'\{"name":"[SF]H",[^\n]*?"name":"([^"\n]*)"')


def make_private(directory: Path) -> None:
    """Give each file below `directory` the mode of a session's files, and mask the secrets in logs.

    A log keeps its length: a process that outlives the command goes on writing to it.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                _make_log_private(entry.path)


def _make_log_private(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, names.FILE_MODE)
        if path.endswith(names.RECORDED_CALLS):
            return
        size = os.fstat(descriptor).st_size
        if not size:
            return
        value_follows = False
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as log:
            for found in _NAMES.finditer(log):
                name = found[1].decode("latin-1")
                hidden = _hidden(name, value_follows)
                value_follows = name.startswith("-") and not {";", "="} & {*name} and is_secret(name)
                if hidden != name:
                    os.pwrite(descriptor, hidden.encode("latin-1"), found.start(1))
    finally:
        os.close(descriptor)


def _hidden(name: str, is_value: bool) -> str:
    if is_value and not name.startswith("-"):
        return "*" * len(name)
    return ";".join(masked(name.split(";"), same_length=True))
