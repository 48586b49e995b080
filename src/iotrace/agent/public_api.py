"""``iotrace.step`` and ``iotrace.batches``: for loops whose data comes from no torch DataLoader."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    from iotrace.agent.recording.recorder import Recorder

    Item = TypeVar("Item")

_recorder: Recorder | None = None


def follow(recorder: Recorder | None) -> None:
    """Record marks and batches with `recorder` from now on; with None no more."""
    global _recorder
    _recorder = recorder


def step() -> None:
    """Mark the start of the loop's next step. Outside a traced run it does nothing, in less than 0.2 us."""
    recorder = _recorder
    if recorder is not None:
        _mark(recorder)


def _mark(recorder: Recorder) -> None:
    from time import monotonic_ns

    mono_ns = monotonic_ns()
    try:
        recorder.start()
        recorder.records.append({"type": "mark", "mono_ns": mono_ns})
    except Exception as error:
        recorder.log(f"a step is not marked: {error!r}")


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """``iter(iterable)``, each of whose items is recorded as a batch that the loop waited for.

    Outside a traced run, and of a torch DataLoader, which is recorded anyway, it is ``iter(iterable)``.
    """
    recorder = _recorder
    iterator = iter(iterable)
    if recorder is None:
        return iterator
    try:
        from iotrace.agent.dataloader.wrapped_source import recorded

        wrapped: Iterator[Item] = recorded(iterable, iterator, recorder)
        return wrapped
    except Exception as error:
        recorder.log(f"iotrace.batches({type(iterable).__name__}) is not recorded: {error!r}")
        return iterator
