"""Programs that are started by ``_posixsubprocess.fork_exec``: subprocess, and multiprocessing's spawn.

The child comes from vfork: until its exec it shares the parent's memory, dftracer's state included, and it
has closed dftracer's log. Two things follow:

A buffer of dftracer's that gets full in the child cannot be written: it is dropped, with calls of the
parent's, and dftracer complains on the child's standard error. Hence the buffer is written out before, and
the child is spared the attempts to run a program where it is not: each is a traced call.

A child that cannot run its program leaves by ``_exit``, at which dftracer ends: in the parent, too. Hence a
program that is known to be missing is replaced by one that does nothing, and its error is reported as the
child would. Where dftracer was ended nevertheless, that is recorded.
"""

from __future__ import annotations

import sys
from errno import EACCES, ENOENT, ENOTDIR
from fcntl import ioctl
from os import X_OK, access, fsencode, getcwdb, geteuid, getuid, stat, write
from os.path import isdir, join
from time import monotonic_ns

from iotrace.agent.dftracer_compat.flush import find_log, write_out
from iotrace.agent.patching import hide_frame, patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

# Arguments of fork_exec: the program's arguments, the paths at which it may be, the directory to change to,
# its environment, the two ends of the pipe on which a child reports that it failed.
_ARGUMENTS, _CANDIDATES, _DIRECTORY, _ENVIRONMENT, _ERRORS, _REPORT = 0, 1, 4, 5, 12, 13
# Group, groups, user and preexec_fn: where one is given, the child comes from fork.
_BY_FORK = (17, 18, 19, 21) if sys.version_info >= (3, 11) else (16, 17, 18, 20)
_FIONREAD = 0x541B  # termios.FIONREAD, which programs seldom import

# What leaves as a child does that could not run its program.
_SHELL = b"/bin/sh"
_LEAVE = [b"sh", b"-c", b"exit 255"]


def hook_fork_exec(module: Any, recorder: Recorder, log_directory: str) -> None:
    """Patch ``_posixsubprocess.fork_exec``, and what an earlier import of subprocess took over from it."""

    def make(original: Any) -> Any:
        def fork_exec(*args: Any) -> Any:
            traced, missing = False, 0
            try:
                traced = find_log(log_directory) >= 0
                if traced:
                    write_out(log_directory)
                    args, missing = _prepared(args)
            except Exception as error:
                recorder.log(f"a program's start is not prepared for dftracer: {error!r}")
            try:
                pid = original(*args)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                if traced and not missing and _has_failed(args) and not write_out(log_directory):
                    recorder.records.append({"type": "posix_ended", "mono_ns": monotonic_ns()})
                    recorder.start()
            except Exception as error:
                recorder.log(f"a program's start is not looked after: {error!r}")
            return pid

        return fork_exec

    original = module.fork_exec
    patch(module, "fork_exec", make)
    subprocess = sys.modules.get("subprocess")
    if subprocess is not None and getattr(subprocess, "_fork_exec", None) is original:
        patch(subprocess, "_fork_exec", lambda _: module.fork_exec)


def _prepared(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    """Arguments that do the same to the caller, and less to dftracer; the error where there is no program.

    The child tries one path after the other. It reports the first error that says more than that nothing
    is there, else the last one.
    """
    if any(args[place] is not None for place in _BY_FORK):
        return args, 0  # it has a dftracer of its own, and may see other files
    candidates = args[_CANDIDATES]
    directory = getcwdb()
    if args[_DIRECTORY] is not None:
        directory = join(directory, fsencode(args[_DIRECTORY]))
    errors = []
    for path in candidates:
        errors.append(_error_of(b"/" + join(directory, path)))  # two slashes: dftracer does not trace that
        if not errors[-1]:
            break
    telling = [place for place, error in enumerate(errors) if error not in (ENOENT, ENOTDIR)]
    first = telling[0] if telling else len(errors) - 1
    error = errors[first]
    fails = errors[-1] != 0
    if fails and isdir(b"/" + directory) and access(b"/" + _SHELL, X_OK):
        write(args[_REPORT], f"OSError:{error:X}:".encode())
        changed = list(args)
        changed[_ARGUMENTS], changed[_CANDIDATES] = _LEAVE, (_SHELL,)
        changed[_DIRECTORY], changed[_ENVIRONMENT] = None, []
        return tuple(changed), error
    return (*args[:_CANDIDATES], candidates[first:], *args[_CANDIDATES + 1 :]), 0


def _error_of(path: bytes) -> int:
    """Why nothing at `path` can be run, as far as a look at its name tells; 0 where something may."""
    try:
        stat(path)
    except OSError as error:
        return error.errno or 0
    return EACCES if isdir(path) or (getuid() == geteuid() and not access(path, X_OK)) else 0


def _has_failed(args: tuple[Any, ...]) -> bool:
    """Whether the child has reported an error: nobody has read it yet."""
    return any(ioctl(args[_ERRORS], _FIONREAD, b"\0\0\0\0"))
