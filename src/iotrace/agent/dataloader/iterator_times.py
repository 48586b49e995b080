"""Record how long the program takes to make an iterator of a loader, and to end the workers of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import observe
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import thread_id

NumberOf = Callable[[Any], int | None]  # the number of an iterator; None where it is not recorded


def hook_making(loader_class: Any, recorder: Recorder, number_of: NumberOf) -> None:
    """Patch ``__iter__`` of a class of loaders: it starts workers, or waits for those that persist."""

    def before(*_: Any) -> int:
        return monotonic_ns()

    def after(start_ns: int | None, iterator: Any, _: Sequence[Any], __: dict[str, Any]) -> None:
        number = number_of(iterator)
        if number is not None:
            _record(recorder, "iterator_made", number, start_ns)

    observe(loader_class, "__iter__", recorder, "timing an iterator", before=before, after=after)


def hook_ending(iterator_class: Any, recorder: Recorder, number_of: NumberOf) -> None:
    """Patch ``_shutdown_workers``, which joins them: at the last batch, or where an iterator is dropped."""

    def before(passed: list[Any], _: dict[str, Any]) -> int | None:
        return None if getattr(passed[0], "_shutdown", True) else monotonic_ns()

    def ended(start_ns: int | None, passed: Sequence[Any], _: dict[str, Any]) -> None:
        number = None if start_ns is None else number_of(passed[0])
        if number is not None:
            _record(recorder, "workers_ended", number, start_ns)

    observe(iterator_class, "_shutdown_workers", recorder, "timing workers", before=before, ended=ended)


def _record(recorder: Recorder, what: str, number: int, start_ns: int | None) -> None:
    if start_ns is None or recorder.over:
        return
    recorder.records.append(
        {
            "type": what,
            "iterator": number,
            "tid": thread_id(),
            "start_ns": start_ns,
            "duration_ns": monotonic_ns() - start_ns,
        }
    )
