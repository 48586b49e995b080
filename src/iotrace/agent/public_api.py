"""Record ``iotrace.step`` and ``iotrace.batches``, for loops whose data comes from no torch DataLoader."""

from __future__ import annotations

from iotrace.agent.recording import regions

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    from iotrace.agent.recording.recorder import Recorder

    Item = TypeVar("Item")


def step() -> None:
    """Begin the loop's next step. Outside a traced run it does nothing, in less than 0.2 us."""
    recorder = regions.attached
    if recorder is not None:
        _begin_step(recorder)


def _begin_step(recorder: Recorder) -> None:
    from time import monotonic_ns

    from iotrace.session.names import MARK_ROW

    mono_ns = monotonic_ns()
    try:
        recorder.start()
        recorder.records.append((MARK_ROW, mono_ns))
    except recorder.ours(Exception) as error:
        recorder.absorb(error, "recording a step")


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """Return ``iter(iterable)``, with each item recorded as a batch that the loop waited for.

    It is plain ``iter(iterable)`` outside a traced run, and for a torch DataLoader, which is recorded anyway.
    """
    recorder = regions.attached
    iterator = iter(iterable)
    if recorder is None:
        return iterator
    try:
        from iotrace.agent.dataloader.wrapped_source import recorded

        wrapped: Iterator[Item] = recorded(iterable, iterator, recorder)
        return wrapped
    except recorder.ours(Exception) as error:
        recorder.absorb(error, f"recording iotrace.batches({type(iterable).__name__})")
        return iterator
