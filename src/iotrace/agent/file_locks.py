"""Record how long threads wait for locks of files: ``fcntl.flock``, ``lockf``, those of ``filelock``."""

from __future__ import annotations

import os
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns

from iotrace.agent.patching import observe
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.names import LOCKED_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

_WHAT = "recording the wait for a file's lock"
_LEAST_NS = 100_000


def hook_calls(_: Any, recorder: Recorder) -> None:
    """Patch ``fcntl``, which every process imports, once the program imports what makes batches."""
    import fcntl

    for name in ("flock", "lockf"):
        observe(fcntl, name, recorder, _WHAT, before=_begin, ended=partial(_ended, recorder, _path_of))


def hook_filelock(module: Any, recorder: Recorder) -> None:
    """Patch `module`, ``filelock._api``, which asks for a lock again and again."""
    ended = partial(_ended, recorder, lambda lock: os.path.abspath(lock.lock_file))
    observe(module.BaseFileLock, "acquire", recorder, _WHAT, before=_begin, ended=ended)


def _begin(*_: Any) -> int:
    return monotonic_ns()


def _path_of(file: Any) -> str:
    return os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")


def _ended(recorder: Recorder, path_of: Any, start_ns: int | None, args: Any, _: Any) -> None:
    end_ns = monotonic_ns()
    if start_ns and end_ns - start_ns >= _LEAST_NS and not recorder.over:
        file = recorder.text(path_of(args[0]))
        recorder.records.append((LOCKED_ROW, thread_id(), start_ns, end_ns, end_ns - start_ns, file))
