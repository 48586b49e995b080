"""Have the preloaded dftracer write the calls in its buffer.

It writes when its buffer of 4 KiB is full, and has no function that we could call to flush it. Hence we fill
the buffer with calls that readers drop.
"""

from __future__ import annotations

# waitpid for this process itself fails at once, without a file system: dftracer traces it whatever paths it
# traces, and readers drop it, because it has no file.
from posix import O_CLOEXEC, O_RDONLY, WNOHANG, close, getpid, open, read, readlink, stat, waitpid

from iotrace.session.guard import ours

# The buffer holds some 26 calls. More do not help: tracing is off, or the log is somewhere else.
_MOST_CALLS = 40

# The process that searched for its log, and the log's path (empty: none).
_found = (0, "")


def flush(directory: str) -> bool:
    """Fill dftracer's buffer until its log below `directory` grows; return whether it did."""
    log = find_log(directory)
    size, own = _size(log), getpid()
    if size < 0:
        return False
    for _ in range(_MOST_CALLS):
        try:
            waitpid(own, WNOHANG)
        except ours(ChildProcessError):
            pass
        if _size(log) != size:
            return True
    return False


def find_log(directory: str) -> str:
    """Return the path of this process's log below `directory`, with two slashes in front; empty: it has none.

    Each process searches for it once; a fork begins another log.
    """
    global _found
    if _found[0] != getpid():
        _found = (getpid(), _search(_real_path(directory) + "/"))
    return _found[1]


def _size(log: str) -> int:
    try:
        return stat(log).st_size if log else -1
    except ours(OSError):
        return -1


def _real_path(directory: str) -> str:
    """Return the path without links. os.path.realpath keeps errors of the kind OSError."""
    try:
        descriptor = open(f"/{directory}", O_RDONLY | O_CLOEXEC)
        try:
            return readlink(f"/proc/self/fd/{descriptor}")
        finally:
            close(descriptor)
    except ours(OSError):
        return directory


def _search(prefix: str) -> str:
    """Find the log that the guard has mapped: it has no descriptor."""
    maps = b""
    try:
        descriptor = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)
        try:
            while part := read(descriptor, 1 << 16):
                maps += part
        finally:
            close(descriptor)
    except ours(OSError):
        return ""
    for line in maps.split(b"\n"):
        _, slash, path = line.partition(b" /")
        found = "/" + path.decode(errors="surrogateescape")
        if slash and found.startswith(prefix) and found.endswith(".pfw"):
            return "/" + found  # two slashes: dftracer does not trace it
    return ""
