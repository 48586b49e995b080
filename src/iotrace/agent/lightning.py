"""Lightning's trainer: which of its stages each batch belongs to. No Callback is added to it."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any
from weakref import ref

from iotrace.agent.dataloader import phases
from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder

NAMESPACES = ("pytorch_lightning", "lightning.pytorch")

# The trainer that runs. Weak: a trainer holds the model, which must not live on through us.
_trainer: Any = None


def hook_trainer(module: Any, recorder: Recorder) -> None:
    """Patch ``Trainer._run`` of ``<namespace>.trainer.trainer``.

    All of fit, validate, test and predict come through it, in the process that does the work: strategies
    that spawn their processes call ``fit`` in another one.
    """

    def make(original: Any) -> Any:
        def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
            outer = _trainer
            follow(self)
            start_ns = monotonic_ns()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                _ended(self, start_ns, recorder)
                follow(outer() if outer is not None else None)

        return _run

    patch(module.Trainer, "_run", make)


def follow(trainer: Any) -> None:
    """Take the phase from `trainer`, with None from nowhere."""
    global _trainer
    _trainer = ref(trainer) if trainer is not None else None
    phases.tell_by(None if trainer is None else _phase)


def _phase() -> tuple[str | None, int]:
    trainer = _trainer() if _trainer is not None else None
    stage = getattr(getattr(trainer, "state", None), "stage", None)
    value = getattr(stage, "value", None)
    if not isinstance(value, str):
        return None, 0
    # Of a loader without a length, Lightning takes batches in advance, to know which one is the last.
    loop = getattr(trainer, "fit_loop", None) if value == "train" else None
    fetcher = getattr(loop, "_data_fetcher", None)
    ahead = getattr(fetcher, "prefetch_batches", 0) if getattr(fetcher, "length", 0) is None else 0
    return value, ahead


def _ended(trainer: Any, start_ns: int, recorder: Recorder) -> None:
    try:
        function = getattr(trainer.state.fn, "value", None)
        recorder.records.append(
            {
                "type": "trainer",
                "function": str(function),
                "start_ns": start_ns,
                "end_ns": monotonic_ns(),
            }
        )
    except Exception as error:
        recorder.log(f"the trainer's run is not recorded: {error!r}")
