"""Have dftracer write the names of files before a fork.

A child of vfork (subprocess) shares the parent's memory, dftracer's buffer and log included: nothing is to be
done there. `launch/posix_guard.c` lets such a child leave past dftracer, which would end in the parent.
"""

from __future__ import annotations

from time import monotonic_ns

from iotrace.agent.dftracer_compat.flush import flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

_FLUSH_NS = 1_000_000_000  # at most so often: a flush is some 25 calls

_log_directory = ""
_flushed_ns = 0


def hook_fork_exec(module: Any, recorder: Recorder, log_directory: str) -> None:
    """Know where the log is, as soon as the process may start others."""
    global _log_directory
    _log_directory = log_directory


def write_names() -> None:
    """Before a fork: have dftracer write the names of files that the child's calls will not repeat.

    Who reads the session meanwhile needs them; a parent that makes no calls would hold them back to its end.
    """
    global _flushed_ns
    now_ns = monotonic_ns()
    if _log_directory and now_ns - _flushed_ns > _FLUSH_NS:
        _flushed_ns = now_ns
        flush(_log_directory)
