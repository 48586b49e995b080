"""The pin-memory thread between workers and consumer: when it received each batch and had it pinned."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import hide_frame, patch

# By the thread's input queue's id: batch index -> (received, pinned).
_pin_stamps: dict[int, dict[int, tuple[int, int]]] = {}


def stamps_of(queue: Any) -> dict[int, tuple[int, int]]:
    """The stamps of the thread that reads `queue`, which may not have begun yet."""
    return _pin_stamps.setdefault(id(queue), {})


def hook_pin_memory_loop(module: Any) -> None:
    """Patch ``_pin_memory_loop`` of ``torch.utils.data._utils.pin_memory``."""
    patch(module, "_pin_memory_loop", _make_loop)


def _make_loop(original: Any) -> Any:
    def _pin_memory_loop(in_queue: Any, out_queue: Any, *args: Any, **kwargs: Any) -> Any:
        stamps = stamps_of(in_queue)
        try:
            return original(_PinSource(in_queue, stamps), _PinTarget(out_queue, stamps), *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            _pin_stamps.pop(id(in_queue), None)

    return _pin_memory_loop


class _PinSource:
    """The workers' queue, as the pin-memory thread reads it."""

    def __init__(self, queue: Any, stamps: dict[int, tuple[int, int]]) -> None:
        self._queue = queue
        self._stamps = stamps

    def get(self, *args: Any, **kwargs: Any) -> Any:
        item = self._queue.get(*args, **kwargs)
        if isinstance(item[0], int):
            self._stamps[item[0]] = (monotonic_ns(), 0)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _PinTarget:
    """The queue of pinned batches, as the pin-memory thread fills it."""

    def __init__(self, queue: Any, stamps: dict[int, tuple[int, int]]) -> None:
        self._queue = queue
        self._stamps = stamps

    def put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        stamp = self._stamps.get(item[0]) if isinstance(item[0], int) else None
        if stamp is not None:
            self._stamps[item[0]] = (stamp[0], monotonic_ns())
        return self._queue.put(item, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
