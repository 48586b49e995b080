"""Have dftracer write its buffer before an exec, and where Python ends itself by a signal.

The log has no descriptor that the program could close or take (`launch/posix_guard_log.c`).
"""

from __future__ import annotations

import os
import sys

from iotrace.agent.patching import observe
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from iotrace.agent.recording.recorder import Recorder


def flush_before_exec(log_directory: str, recorder: Recorder) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all others use: an exec drops what is held back."""

    def leaving(*_: object) -> None:
        from iotrace.agent.dftracer_compat.flush import flush  # few programs need it

        flush(log_directory)

    for name in ("execv", "execve"):
        observe(os, name, recorder, "writing dftracer's buffer", before=leaving, layer="dftracer")


def flush_if_interrupted(log_directory: str, recorder: Recorder) -> None:
    """Have dftracer write its buffer where Python will end itself by SIGINT, past C's exit handlers."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        try:
            from iotrace.agent.dftracer_compat.flush import flush  # few programs need it

            flush(log_directory)
        except ours(Exception) as error:
            recorder.absorb(error, "writing after an interrupt")
