"""Record which stage of Lightning's trainer each batch belongs to, and time what the trainer times.

No Callback is added to the trainer. It does its work (each hook of a callback, the strategy, the module, the
data module) within ranges of its profiler, also where the program asked for none: then they do nothing.
``Profiler.profile`` of the base class makes all of them, so the user's profiler stays what it is. A range is
a span of the kind `trainer`, less what the program's own profiler does at its begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any
from weakref import ref

from iotrace.agent import training
from iotrace.agent.patching import StandIn, hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.guard import ours
from iotrace.session.names import KIND_TRAINER

# The trainer that runs. Weak: a trainer holds the model, which must not live on through us.
_trainer: ref[Any] | None = None


def hook_trainer(module: Any, recorder: Recorder) -> None:
    """Patch ``Trainer._run`` of ``<namespace>.trainer.trainer``.

    All of fit, validate, test and predict come through it, in the process that does the work: strategies
    that spawn their processes call ``fit`` in another one.
    """

    def starting(args: list[Any], _: dict[str, Any]) -> tuple[ref[Any] | None, int]:
        outer = _trainer
        attach(args[0])
        return outer, monotonic_ns()

    def ended(seen: tuple[ref[Any] | None, int], args: Sequence[Any], _: dict[str, Any]) -> None:
        outer, start_ns = seen
        trainer = outer() if outer is not None else None
        if trainer is not None:
            attach(trainer)
        else:
            detach()
        function = str(getattr(args[0].state.fn, "value", None))
        recorder.records.append(
            {"type": "trainer", "function": function, "start_ns": start_ns, "end_ns": monotonic_ns()}
        )

    observe(module.Trainer, "_run", recorder, "recording the trainer's run", before=starting, ended=ended)


def attach(trainer: Any) -> None:
    """Take the phase of each batch from `trainer`."""
    global _trainer
    _trainer = ref(trainer)
    training.set_phase_source(_phase)


def detach() -> None:
    """Take the phase from no trainer."""
    global _trainer
    _trainer = None
    training.set_phase_source(None)


def _phase() -> tuple[str | None, int]:
    trainer = _trainer() if _trainer is not None else None
    stage = getattr(getattr(trainer, "state", None), "stage", None)
    value = getattr(stage, "value", None)
    if not isinstance(value, str):
        return None, 0
    # Lightning takes batches of a loader without a length ahead, to know which one is the last.
    loop = getattr(trainer, "fit_loop", None) if value == "train" else None
    fetcher = getattr(loop, "_data_fetcher", None)
    ahead = getattr(fetcher, "prefetch_batches", 0) if getattr(fetcher, "length", 0) is None else 0
    return value, ahead


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
        super().__init__(inner)
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
