"""Time what saves a checkpoint: each call is a span of the kind `checkpoint`, with its file where known."""

from __future__ import annotations

from time import monotonic_ns

from iotrace.agent.patching import observe
from iotrace.agent.recording.thread_clocks import thread_id
from iotrace.session.names import KIND_CHECKPOINT

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

# By the module that defines them: functions, or methods, that save, and which argument says where to.
SAVES = {
    "torch.serialization": (("save", 1, "f"),),
    "torch.distributed.checkpoint.state_dict_saver": (
        ("save", -1, "checkpoint_id"),
        ("async_save", -1, "checkpoint_id"),
    ),
    "safetensors.torch": (("save_file", 1, "filename"),),
    "transformers.trainer": (("Trainer._save_checkpoint", -1, ""),),
    "lightning.pytorch.trainer.trainer": (("Trainer.save_checkpoint", 1, "filepath"),),
    "pytorch_lightning.trainer.trainer": (("Trainer.save_checkpoint", 1, "filepath"),),
}


def hook_saves(module: Any, recorder: Recorder, name: str) -> None:
    """Time the calls of the module `name` that save."""
    for path, position, keyword in SAVES[name]:
        owner, _, call = path.rpartition(".")
        target = getattr(module, owner, None) if owner else module
        if target is not None:
            _time(target, call, recorder, f"{name.partition('.')[0]}.{path}", (position, keyword))


def _time(owner: Any, call: str, recorder: Recorder, shown: str, where: tuple[int, str]) -> None:
    def begins(*_: Any) -> int:
        return monotonic_ns()

    def ended(start_ns: int | None, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if start_ns is None or not recorder.running:
            return
        duration_ns = monotonic_ns() - start_ns
        file = _file(args, kwargs, *where)
        number = recorder.text(file) if file else -1
        what = (-1, -1, thread_id(), recorder.text(shown), number, KIND_CHECKPOINT)
        recorder.spans.append((start_ns, duration_ns, *what, -1, -1, -1, -1, -1))

    observe(owner, call, recorder, "timing a checkpoint", before=begins, ended=ended, layer="checkpoint")


def _file(args: Sequence[Any], kwargs: dict[str, Any], position: int, keyword: str) -> str:
    """Return the path that a call saves to, or that of the file object; empty where neither is text."""
    given: Any = kwargs.get(keyword)
    if given is None and 0 <= position < len(args):
        given = args[position]
    if type(given) is str:
        return given
    found = given.__fspath__() if hasattr(given, "__fspath__") else getattr(given, "name", None)
    return found if type(found) is str else ""
