"""What Python's garbage collector was like in the training process, and how often it collected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Collector
from iotrace.sources.records import Collector as CollectorLook

_FEWEST = 3  # full collections


def collector_of(analysis: RankAnalysis) -> Collector | None:
    """What the collector was like when its objects were counted last in the loop, and how often it collected.

    Collections are counted until the last look; one that counted no objects has to be in the loop.
    """
    main, steps = analysis.rank.main, analysis.loop.steps
    looks = main.of_type(CollectorLook)
    at = main.clock.times_to_session_ns([look.mono_ns for look in looks])
    begun = np.searchsorted(steps["start_ns"], at).tolist()  # so many steps had
    over = np.asarray(at, np.int64) > steps["end_ns"][-1]
    known = [
        (look, step)
        for look, step, is_over in zip(looks, begun, over.tolist(), strict=True)
        if step and (look.objects is not None or not is_over)
    ]
    counted = next((look for look, _ in reversed(known) if look.objects is not None), None)
    if counted is None or counted.objects is None or counted.frozen is None:
        return None
    first, since = looks[0], begun[0]
    last, until = known[-1]
    per_step = full_per_step = None
    if until > since and first.collections and len(first.collections) == len(last.collections):
        per_step = (sum(last.collections) - sum(first.collections)) / (until - since)
        full_per_step = (last.collections[-1] - first.collections[-1]) / (until - since)
    return Collector(
        enabled=last.enabled,
        threshold=(last.threshold or [0])[0],
        objects=counted.objects,
        frozen=counted.frozen,
        per_step=per_step,
        full_per_step=full_per_step,
        is_called=is_called(last.threshold, per_step, full_per_step, until - since),
    )


def is_called(
    threshold: Sequence[int], per_step: float | None, full_per_step: float | None, steps: int
) -> bool | None:
    """Whether more collections are full ones than the collector makes by itself, and at least some."""
    if per_step is None or full_per_step is None:
        return None
    by_itself = per_step
    for each in threshold[1:]:
        by_itself /= max(1, each)
    return full_per_step * steps >= _FEWEST and full_per_step >= 2 * by_itself and len(threshold) > 2
