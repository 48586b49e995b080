"""Some steps around the longest wait, batch by batch: made, ready, awaited, computed on."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.cuts import first_at
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.top import BatchWindow
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import Explained

STEPS = 20


def batch_window(analysis: RankAnalysis) -> BatchWindow | None:
    """Choose the steps around the measured step that waits longest; None where none is measured."""
    steps, kept = analysis.loop.steps, analysis.kept
    if not len(kept) or analysis.source is None:
        return None
    most = int(np.argmax(kept.wait_ns))
    worst_ns, worst_end_ns = int(kept["start_ns"][most]), int(kept["end_ns"][most])
    chosen = steps_around(len(steps), int(np.searchsorted(steps["start_ns"], worst_ns)))
    around = steps[chosen.start : chosen.stop]
    start_ns, end_ns = int(around["start_ns"][0]), int(around["end_ns"][-1])
    asks_ns = np.sort(steps.awaited["wait_start_ns"])
    batches = analysis.with_inner(around.awaited)
    own = list(analysis.waits_for(batches[batches["loader"] == analysis.source.number]))
    # Steps around it that are not measured may wait longer: the tables are not about them.
    of_worst = [wait for wait in own if worst_ns < wait.delivery.delivered_ns <= worst_end_ns]
    longest = max(of_worst or own, key=lambda wait: wait.delivery.wait_ns, default=None)

    def ms(time_ns: int | None) -> float | None:
        return None if time_ns is None else (time_ns - start_ns) / 1e6

    def since(time_ns: int) -> float:
        return (time_ns - start_ns) / 1e6

    ready_at, ready = ready_queue(analysis.source.deliveries, start_ns, end_ns)
    return BatchWindow(
        first_step=chosen.start,
        steps=len(chosen),
        length_ms=(end_ns - start_ns) / 1e6,
        step_starts_ms=[since(time_ns) for time_ns in around["start_ns"].tolist()],
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


def steps_around(count: int, worst: int) -> range:
    """Choose up to `STEPS` consecutive steps with `worst` in their middle, as far as there are so many."""
    first = max(0, min(worst - STEPS // 2, count - STEPS))
    return range(first, min(first + STEPS, count))


def _next_ask(asks_ns: Times, delivered_ns: int, end_ns: int) -> int | None:
    """When the loop asked for a batch again, if by `end_ns`: till then it computed, or did something else."""
    following = first_at(asks_ns, delivered_ns)
    return following if following is not None and following <= end_ns else None


def _made_of(wait: Explained) -> str | None:
    if wait.made is None:
        return None
    parts, _ = wait.made
    return max(zip(parts, PARTS, strict=True))[1]


def ready_queue(deliveries: Deliveries, start_ns: int, end_ns: int) -> tuple[list[int], list[int]]:
    """Count the batches that are prepared and not yet delivered, from each change within the window on.

    Empty where the preparation of a batch is unknown.
    """
    near = deliveries[deliveries["delivered_ns"] >= start_ns]
    if not near.known("prepared_ns").all():
        return [], []
    at = np.concatenate((np.maximum(near["prepared_ns"], start_ns), near["delivered_ns"]))
    by = np.repeat([1, -1], len(near))
    at, by = at[at < end_ns], by[at < end_ns]
    # A batch is prepared before it is delivered: at one instant it counts first.
    order = np.lexsort((-by, at))
    return [start_ns, *at[order].tolist()], [0, *np.cumsum(by[order]).tolist()]
