"""Have the preloaded dftracer write the calls in its buffer.

It writes when its buffer of 4 KiB is full, and has no function that we could call to flush it. Hence we fill
the buffer with calls that readers drop.
"""

from __future__ import annotations

# waitpid for this process itself fails at once, without a file system: dftracer traces it whatever paths it
# traces, and readers drop it, because it has no file.
from posix import O_CLOEXEC, O_RDONLY, WNOHANG, close, fstat, getpid, listdir, open, readlink, waitpid

from iotrace.session.guard import ours

# The buffer holds some 26 calls. More do not help: tracing is off, or the log is somewhere else.
_MOST_CALLS = 40

# The process that searched for its log, the log's descriptor (-1: none), its device and inode.
_found = (0, -1, 0, 0)


def flush(directory: str) -> bool:
    """Fill dftracer's buffer until its log below `directory` grows; return whether it did."""
    log = find_log(directory)
    if log < 0:
        return False
    size, own = fstat(log).st_size, getpid()
    for _ in range(_MOST_CALLS):
        try:
            waitpid(own, WNOHANG)
        except ours(ChildProcessError):
            pass
        if fstat(log).st_size != size:
            return True
    return False


def find_log(directory: str) -> int:
    """Return the descriptor of this process's log below `directory`, -1 where there is none.

    Each process searches for it once; a fork begins another log.
    """
    global _found
    process, descriptor, device, inode = _found
    if process != getpid():
        descriptor, device, inode = _search(_real_path(directory) + "/")
        _found = (getpid(), descriptor, device, inode)
    elif descriptor >= 0:
        try:
            status = fstat(descriptor)
        except ours(OSError):
            return -1
        if (status.st_dev, status.st_ino) != (device, inode):
            return -1
    return descriptor


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


def _search(prefix: str) -> tuple[int, int, int]:
    """Find the log that was written last: an exec (of taskset, say) leaves the one before it open."""
    found, written_ns = (-1, 0, 0), -1
    for name in listdir("/proc/self/fd"):
        try:
            if readlink(f"/proc/self/fd/{name}").startswith(prefix):
                status = fstat(int(name))
                if status.st_mtime_ns > written_ns:
                    found, written_ns = (int(name), status.st_dev, status.st_ino), status.st_mtime_ns
        except ours(OSError):  # closed meanwhile, as that of the listing itself
            continue
    return found
