"""Keep dftracer sound where ``_posixsubprocess.fork_exec`` starts programs (subprocess, spawned workers).

The child comes from vfork: until its exec it shares the parent's memory, dftracer's state included, and it
has closed dftracer's log. Two things follow:

A buffer of dftracer's that becomes full in the child cannot be written: dftracer drops it, with calls of the
parent's, and complains on the child's standard error. Hence the buffer is flushed before, and the child does
not try paths at which the program is not: each try is a traced call.

A child that cannot run its program leaves by ``_exit``, at which dftracer ends in the parent, too. Hence a
program that is known to be missing is replaced by one that does nothing, and its error is reported as the
child would. Where dftracer was ended nevertheless, the agent records that.
"""

from __future__ import annotations

import sys
from errno import EACCES, ENOENT, ENOTDIR
from fcntl import ioctl
from os import fsencode
from os.path import join
from posix import X_OK, access, getcwdb, geteuid, getuid, stat, write
from stat import S_ISDIR
from time import monotonic_ns

from iotrace.agent.dftracer_compat.flush import find_log, flush
from iotrace.agent.patching import observe
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

# Arguments of fork_exec: the program's arguments, the paths at which it may be, the directory to change to,
# its environment, the two ends of the pipe on which a child reports that it failed.
_ARGUMENTS, _CANDIDATES, _DIRECTORY, _ENVIRONMENT, _ERRORS, _REPORT = 0, 1, 4, 5, 12, 13
# Group, groups, user and preexec_fn: where one is given, the child comes from fork.
_BY_FORK = (17, 18, 19, 21) if sys.version_info >= (3, 11) else (16, 17, 18, 20)
_FLUSH_NS = 1_000_000_000  # at most so often: a flush is some 25 calls
_FIONREAD = 0x541B  # termios.FIONREAD, which programs seldom import

# What leaves as a child does that could not run its program.
_SHELL = b"/bin/sh"
_LEAVE = [b"sh", b"-c", b"exit 255"]


_log_directory = ""
_flushed_ns = 0


def write_names() -> None:
    """Before a fork: have dftracer write the names of files that the child's calls will not repeat.

    Who reads the session meanwhile needs them; a parent that makes no calls would hold them back to its end.
    """
    global _flushed_ns
    now_ns = monotonic_ns()
    if _log_directory and now_ns - _flushed_ns > _FLUSH_NS:
        _flushed_ns = now_ns
        flush(_log_directory)


def hook_fork_exec(module: Any, recorder: Recorder, log_directory: str) -> None:
    """Patch ``_posixsubprocess.fork_exec``, on top of `forks`, through which subprocess calls it."""
    global _log_directory
    _log_directory = log_directory

    def starting(args: list[Any], _: dict[str, Any]) -> bool:
        """Return whether the start has to be looked after."""
        if find_log(log_directory) < 0:
            return False
        flush(log_directory)
        return not _prepare(args)

    def started(traced: bool | None, _: Any, args: Sequence[Any], __: dict[str, Any]) -> None:
        if traced and _has_failed(args) and not flush(log_directory):
            recorder.records.append({"type": "posix_ended", "mono_ns": monotonic_ns()})
            recorder.start()

    observe(module, "fork_exec", recorder, "preparing dftracer for a start", before=starting, after=started)


def _prepare(args: list[Any]) -> int:
    """Change `args` to disturb dftracer less; return the error number where there is no program, else 0.

    The caller sees no difference. The child tries one path after the other. It reports the first error other
    than that nothing is there, else the last one.
    """
    if any(args[index] is not None for index in _BY_FORK):
        return 0  # it has a dftracer of its own, and may see other files
    candidates = args[_CANDIDATES]
    directory = getcwdb()
    if args[_DIRECTORY] is not None:
        directory = join(directory, fsencode(args[_DIRECTORY]))
    errors = []
    for path in candidates:
        errors.append(_error_of(b"/" + join(directory, path)))  # two slashes: dftracer does not trace that
        if not errors[-1]:
            break
    reported = [index for index, error in enumerate(errors) if error not in (ENOENT, ENOTDIR)]
    first = reported[0] if reported else len(errors) - 1
    error = errors[first]
    fails = errors[-1] != 0
    if fails and _is_directory(b"/" + directory) and access(b"/" + _SHELL, X_OK):
        write(args[_REPORT], f"OSError:{error:X}:".encode())
        args[_ARGUMENTS], args[_CANDIDATES] = _LEAVE, (_SHELL,)
        args[_DIRECTORY], args[_ENVIRONMENT] = None, []
        return error
    args[_CANDIDATES] = candidates[first:]
    return 0


def _error_of(path: bytes) -> int:
    """Return the error number of running `path`, as far as its metadata show it; 0 where it may run."""
    try:
        stat(path)
    except ours(OSError) as error:
        return error.errno or 0
    return EACCES if _is_directory(path) or (getuid() == geteuid() and not access(path, X_OK)) else 0


def _is_directory(path: bytes) -> bool:
    try:
        return S_ISDIR(stat(path).st_mode)
    except ours(OSError):
        return False


def _has_failed(args: Sequence[Any]) -> bool:
    """Return whether the child has reported an error, which nobody has read yet."""
    return any(ioctl(args[_ERRORS], _FIONREAD, b"\0\0\0\0"))
