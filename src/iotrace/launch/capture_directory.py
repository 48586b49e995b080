"""Where the recorder maps its files: in the session, or elsewhere where the session lies on a network file
system. When the command has ended, they are moved into the session and made private.

A page of a mapped file that a server holds may be written back, and fetched again, at any call of the
program; and a full server is an error when it is too late to tell.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from iotrace.session import names
from iotrace.session.masks import is_secret, masked

_NETWORK = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "smb",
    "ceph",
    "9p",
    "afs",
    "pvfs",
    "orangefs",
    "daos",
    "fuse",
)
_LOCAL = ("TMPDIR", "SLURM_TMPDIR", "PBS_JOBFS")
# A log begins with the process's command line, its arguments joined by semicolons (SH). A program that is
# started leaves its path and first arguments as if they were names of files (FH), one after the other.
_NAMES = re.compile(rb'\{"name":"[SF]H",[^\n]*?"name":"([^"\n]*)"')


def find_file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`; empty where it is not known."""
    file_system, longest = "", -1
    real = os.path.realpath(path) + "/"
    with suppress(OSError), open("/proc/self/mounts", errors="surrogateescape") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            point = point.replace("\\040", " ").rstrip("/") + "/"
            if real.startswith(point) and len(point) >= longest:
                file_system, longest = kind, len(point)
    return file_system


def begin(directory: Path) -> Path:
    """Return where the recorder is to write: `directory`, or a new directory on a local disk."""
    if not find_file_system(directory).startswith(_NETWORK):
        return directory
    for place in [*filter(None, map(os.environ.get, _LOCAL)), tempfile.gettempdir(), "/dev/shm"]:
        with suppress(OSError):
            if not find_file_system(Path(place)).startswith(_NETWORK):
                return _told(directory, tempfile.mkdtemp(prefix=names.LOCAL_DIRECTORY, dir=place))
    return directory


def _told(directory: Path, local: str) -> Path:
    """Return `local`, which those who look at the session while it runs find in `directory`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(directory / names.RECORDED_IN, flags, names.FILE_MODE)
        try:
            os.write(descriptor, os.fsencode(os.path.abspath(local)))
        finally:
            os.close(descriptor)
    return Path(local)


def collect(local: Path, directory: Path) -> None:
    """Move what was recorded to `directory`; what cannot be moved (a full disk) stays where it is.

    A process that outlives the command goes on writing to its file, which then is no part of the session.
    """
    if local == directory:
        return
    with suppress(OSError):
        for path in sorted(local.iterdir()):
            if path.name.endswith(names.RECORDED_CALLS):
                shutil.move(path, directory / path.name)
        local.rmdir()
    with suppress(OSError):
        (directory / names.RECORDED_IN).unlink()


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
            for match in _NAMES.finditer(log):
                name = match[1].decode("latin-1")
                hidden = _hidden(name, value_follows)
                value_follows = name.startswith("-") and not {";", "="} & {*name} and is_secret(name)
                if hidden != name:
                    os.pwrite(descriptor, hidden.encode("latin-1"), match.start(1))
    finally:
        os.close(descriptor)


def _hidden(name: str, is_value: bool) -> str:
    if is_value and not name.startswith("-"):
        return "*" * len(name)
    return ";".join(masked(name.split(";"), same_length=True))
