"""Prepare for a fork, in wrappers of the calls that fork; write what was recorded before an exec.

Python discards what is raised in hooks of ``os.register_at_fork``, and a signal handler of the program may
raise there. Hence the only hook is that in the child, of `bootstrap`. No lock is held over a fork.
"""

from __future__ import annotations

import os
import sys
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask  # type: ignore[import-not-found]

from iotrace.agent.patching import hide_frame, observe, patch
from iotrace.session.guard import handled, ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

_PREEXEC_FN = 21 if sys.version_info >= (3, 11) else 20  # an argument of fork_exec
_LAYER = "fork"


def hook_forks(recorder: Recorder) -> None:
    """Patch ``os.fork`` and ``os.forkpty``."""

    def make(original: Any) -> Any:
        def fork() -> Any:
            window = prepare(recorder)
            # What a handler raises in the hooks of others, as logging has some, would be lost: it runs when
            # they are through. The mask is read first, as the call that sets it may raise.
            held = pthread_sigmask(SIG_BLOCK, ())
            try:
                pthread_sigmask(SIG_BLOCK, handled)
                return original()
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if window is not None:
                    window.forks -= window.forks > 0  # in the child there is none
                pthread_sigmask(SIG_SETMASK, held)

        return fork

    for name in ("fork", "forkpty"):
        patch(os, name, make)


def hook_starts(module: Any, recorder: Recorder) -> None:
    """Patch ``_posixsubprocess.fork_exec``, which forks for a ``preexec_fn``."""

    def starting(args: list[Any], _: dict[str, Any]) -> Any:
        return None if args[_PREEXEC_FN] is None else prepare(recorder)

    def started(window: Any, *_: Any) -> None:
        if window is not None:
            window.forks -= window.forks > 0

    original, what = module.fork_exec, "preparing for a start"
    observe(module, "fork_exec", recorder, what, before=starting, ended=started, layer=_LAYER)
    subprocess: Any = sys.modules.get("subprocess")
    if subprocess is not None and getattr(subprocess, "_fork_exec", None) is original:
        patch(subprocess, "_fork_exec", lambda _: lambda *args: module.fork_exec(*args), _LAYER)


def prepare(recorder: Recorder) -> Any:
    """End what a child must not inherit; return the torch window, which now waits for the fork."""
    if recorder.over:
        return None
    starts = sys.modules.get("iotrace.agent.dftracer_compat.fork_exec")
    torch_window = sys.modules.get("iotrace.agent.torch_profiler.window")
    window = getattr(torch_window, "current", None)
    try:
        if starts is not None:
            starts.write_names()
        if window is not None:
            window.before_fork()
        recorder.before_fork()
    except ours(Exception) as error:
        recorder.absorb(error, "preparing for a fork")
    return window


def close_before_exec(recorder: Recorder) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all others use."""

    def leaving(*_: Any) -> None:
        recorder.close()

    def still_here(*_: Any) -> None:
        recorder.reopen()

    for name in ("execv", "execve"):
        observe(os, name, recorder, "writing before an exec", before=leaving, ended=still_here)
