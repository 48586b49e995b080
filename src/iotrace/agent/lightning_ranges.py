"""Time what Lightning's trainer times: each hook of a callback, the strategy, the module, the data module.

The trainer does its work within ranges of its profiler, also where the program asked for none: then they do
nothing. ``Profiler.profile`` of the base class makes all of them, so the user's profiler stays what it is. A
range is a span of the kind `trainer`, less what the program's own profiler does at its begin and end.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import StandIn, hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.guard import ours
from iotrace.session.names import KIND_TRAINER


def hook_profiler(module: Any, recorder: Recorder) -> None:
    """Patch ``Profiler.profile`` of ``<namespace>.profilers.profiler``."""

    def make(original: Any) -> Any:
        def profile(self: Any, action_name: Any) -> Any:
            try:
                inner = original(self, action_name)
            except BaseException as error:
                hide_frame(error)
                raise
            if recorder.over or type(action_name) is not str:
                return inner
            return _Range(inner, recorder, action_name)

        return profile

    patch(module.Profiler, "profile", make)


class _Range(StandIn):
    """Stands for a range of the program's profiler, and records it."""

    def __init__(self, inner: Any, recorder: Recorder, name: str) -> None:
        self._of = inner
        self._recorder = recorder
        self._name = name
        self._start_ns = 0

    def __enter__(self) -> Any:
        entered = self._of.__enter__()
        self._start_ns = monotonic_ns()
        return entered

    def __exit__(self, *error: Any) -> Any:
        end_ns = monotonic_ns()
        recorder, start_ns = self._recorder, self._start_ns
        try:
            if start_ns and not recorder.over:
                what = (-1, -1, thread_id(), recorder.text(self._name), -1, KIND_TRAINER)
                recorder.spans.append((start_ns, end_ns - start_ns, *what, -1, -1, -1, -1, -1))
        except ours(Exception) as problem:
            recorder.absorb(problem, "recording a range of the trainer")
        return self._of.__exit__(*error)
