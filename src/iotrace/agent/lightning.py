"""Record which stage of Lightning's trainer each batch belongs to. No Callback is added to the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any
from weakref import ref

from iotrace.agent import training
from iotrace.agent.patching import observe
from iotrace.agent.recording.recorder import Recorder

NAMESPACES = ("pytorch_lightning", "lightning.pytorch")

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
        try:
            _record_run(args[0], start_ns, recorder)
        finally:
            trainer = outer() if outer is not None else None
            if trainer is not None:
                attach(trainer)
            else:
                detach()

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


def _record_run(trainer: Any, start_ns: int, recorder: Recorder) -> None:
    function = getattr(trainer.state.fn, "value", None)
    recorder.records.append(
        {"type": "trainer", "function": str(function), "start_ns": start_ns, "end_ns": monotonic_ns()}
    )
