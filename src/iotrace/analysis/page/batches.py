"""Some steps around the longest wait, batch by batch: made, ready, awaited, computed on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from iotrace.analysis.loop.deliveries import Delivery, Step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.page import BatchWindow
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import Explained

STEPS = 20


def batch_window(analysis: RankAnalysis) -> BatchWindow | None:
    """Choose the steps around the measured step that waits longest; None where none is measured."""
    steps, kept = analysis.loop.steps, analysis.kept
    if not kept or analysis.source is None:
        return None
    worst = max(kept, key=lambda step: step.wait_ns)
    chosen = steps_around(steps, next(number for number, step in enumerate(steps) if step is worst))
    start_ns, end_ns = steps[chosen.start].start_ns, steps[chosen.stop - 1].end_ns
    of_loop = [each for step in steps for each in step.awaited]
    asks_ns = sorted(each.wait_start_ns for each in of_loop)
    source = analysis.source.number
    own = [analysis.wait_of(each) for each in _batches_of(analysis, steps[chosen.start : chosen.stop])]
    longest = max(own, key=lambda wait: wait.delivery.wait_ns, default=None)

    def ms(time_ns: int | None) -> float | None:
        return None if time_ns is None else (time_ns - start_ns) / 1e6

    def since(time_ns: int) -> float:
        return (time_ns - start_ns) / 1e6

    everything = [each for each in analysis.source.deliveries if each.loader == source]
    ready_at, ready = ready_queue(everything, start_ns, end_ns)
    return BatchWindow(
        first_step=chosen.start,
        steps=len(chosen),
        length_ms=(end_ns - start_ns) / 1e6,
        step_starts_ms=[since(steps[number].start_ns) for number in chosen],
        batch=[wait.delivery.index for wait in own],
        epoch=[wait.delivery.epoch for wait in own],
        worker=[wait.delivery.worker for wait in own],
        taken_ms=[ms(wait.delivery.taken_ns) for wait in own],
        prepared_ms=[ms(wait.delivery.prepared_ns) for wait in own],
        asked_ms=[since(wait.delivery.wait_start_ns) for wait in own],
        delivered_ms=[since(wait.delivery.delivered_ns) for wait in own],
        computed_ms=[ms(_next_ask(asks_ns, wait.delivery.delivered_ns, end_ns)) for wait in own],
        cause=[wait.cause for wait in own],
        made_of=[_made_of(wait) for wait in own],
        file=[max(wait.files, key=lambda path: sum(wait.files[path]), default=None) for wait in own],
        worst=None if longest is None else own.index(longest),
        ready_at_ms=[since(time_ns) for time_ns in ready_at],
        ready=ready,
    )


def steps_around(steps: Sequence[Step], worst: int) -> range:
    """Choose up to `STEPS` consecutive steps with `worst` in their middle, as far as there are so many."""
    first = max(0, min(worst - STEPS // 2, len(steps) - STEPS))
    return range(first, min(first + STEPS, len(steps)))


def _batches_of(analysis: RankAnalysis, steps: Sequence[Step]) -> list[Delivery]:
    """List the batches of the source that these steps await, where the loop takes them itself or not."""
    assert analysis.source is not None
    inner = analysis.loop.thread.inner if analysis.loop.thread is not None else {}
    found = [
        each
        for step in steps
        for awaited in step.awaited
        for each in (awaited, *inner.get((awaited.loader, awaited.number), ()))
    ]
    return [each for each in found if each.loader == analysis.source.number]


def _next_ask(asks_ns: Sequence[int], delivered_ns: int, end_ns: int) -> int | None:
    """When the loop asked for a batch again: so long it computed on this one, or did something else."""
    following = next((time_ns for time_ns in asks_ns if time_ns >= delivered_ns), None)
    return min(following, end_ns) if following is not None else None


def _made_of(wait: Explained) -> str | None:
    if wait.made is None:
        return None
    parts, _ = wait.made
    return max(zip(parts, PARTS, strict=True))[1]


def ready_queue(deliveries: Sequence[Delivery], start_ns: int, end_ns: int) -> tuple[list[int], list[int]]:
    """Count the batches that are prepared and not yet delivered, from each change within the window on.

    Empty where the preparation of a batch is unknown.
    """
    near = [each for each in deliveries if each.delivered_ns >= start_ns]
    if any(each.prepared_ns is None for each in near):
        return [], []
    changes = [(max(each.prepared_ns or 0, start_ns), 1) for each in near]
    changes += [(each.delivered_ns, -1) for each in near]
    # A batch is prepared before it is delivered: at one instant it counts first.
    changes = sorted(((at, by) for at, by in changes if at < end_ns), key=lambda pair: (pair[0], -pair[1]))
    counts = list(accumulate((by for _, by in changes), initial=0))
    return [start_ns, *(at for at, _ in changes)], counts
