"""Record the pin-memory thread between workers and consumer: when each batch came in and was pinned."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import StandIn, observe
from iotrace.agent.recording.recorder import Recorder

# By the id of the thread's input queue: batch index -> (received_ns, pinned_ns).
_pin_stamps: dict[int, dict[int, tuple[int, int]]] = {}


def stamps_of(queue: Any) -> dict[int, tuple[int, int]]:
    """Return the stamps of the thread that reads `queue`, which may not have begun yet."""
    return _pin_stamps.setdefault(id(queue), {})


def hook_pin_memory_loop(module: Any, recorder: Recorder) -> None:
    """Patch ``_pin_memory_loop`` of ``torch.utils.data._utils.pin_memory``, the thread's target."""

    def starting(args: list[Any], _: dict[str, Any]) -> int:
        queue, stamps = args[0], stamps_of(args[0])
        args[0], args[1] = _PinSource(queue, stamps), _PinTarget(args[1], stamps)
        return id(queue)

    def ended(queue: int | None, *_: Any) -> None:
        if queue is not None:
            _pin_stamps.pop(queue, None)

    observe(
        module, "_pin_memory_loop", recorder, "recording the pin-memory thread", before=starting, ended=ended
    )


class _PinSource(StandIn):
    """Stands for the workers' queue, as the pin-memory thread reads it; its context are the stamps."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        item = self._of.get(*args, **kwargs)
        if isinstance(item[0], int):
            self._context[item[0]] = (monotonic_ns(), 0)
        return item


class _PinTarget(StandIn):
    """Stands for the queue of pinned batches, as the pin-memory thread fills it; its context as above."""

    def put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        stamp = self._context.get(item[0]) if isinstance(item[0], int) else None
        if stamp is not None:
            self._context[item[0]] = (stamp[0], monotonic_ns())
        return self._of.put(item, *args, **kwargs)
