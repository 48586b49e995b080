"""Write what was recorded before the process executes another program."""

from __future__ import annotations

import os

from iotrace.agent.patching import observe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder


def close_before_exec(recorder: Recorder) -> None:
    """Patch ``os.execv`` and ``os.execve``, which all others use."""

    def leaving(*_: Any) -> None:
        recorder.close()

    def still_here(*_: Any) -> None:
        recorder.reopen()

    for name in ("execv", "execve"):
        observe(os, name, recorder, "writing before an exec", before=leaving, ended=still_here)
