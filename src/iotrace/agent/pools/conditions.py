"""Record when a thread that makes items waits at ``threading.Condition``: for semaphores and events, too."""

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from iotrace.agent.patching import hide_frame, pass_for, patch
from iotrace.agent.pools.callers import FEEDS, HERE, PROGRAMS, whose_file
from iotrace.agent.pools.queues import LAYER
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.names import HANDED_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


def hook_conditions(module: Any, recorder: Recorder) -> None:
    """Patch ``threading.Condition.wait``, in which threads wait for semaphores and events, too."""

    def make(original: Any) -> Any:
        def wait(self: Any, timeout: float | None = None) -> Any:
            thread = current.thread
            waits = thread.puts and not recorder.over and _is_awaited(sys._getframe(1))
            start_ns = monotonic_ns() if waits else 0
            try:
                return original(self, timeout)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if waits:
                    row = (HANDED_ROW, -1, -1, thread.tid, start_ns, monotonic_ns(), -1, -1)
                    recorder.records.append(row)

        pass_for(wait, original)
        return wait

    patch(module.Condition, "wait", make, LAYER)


def _is_awaited(frame: FrameType | None) -> bool:
    """Whether a wait is none of a queue's or a pool's, whose hand-overs are recorded."""
    while frame is not None and frame.f_code.co_filename.endswith(f"{os.sep}threading.py"):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame is not None and whose_file(frame.f_code.co_filename) in (PROGRAMS, FEEDS)
