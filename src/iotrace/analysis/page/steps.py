"""The loop's steps as columns; where there are many, bins that keep the longest step of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.page import StepColumns
from iotrace.analysis.wait.waits import CAUSES
from iotrace.sources.telemetry import Floats

MOST_STEPS = 1000  # of more, each entry is a bin
_BINS = 500


def step_columns(analysis: RankAnalysis, wait_known: bool) -> StepColumns | None:
    """Make the columns of all closed steps, measured or not; None where there are none."""
    steps = analysis.loop.steps
    if not steps:
        return None
    kept = {step.start_ns for step in analysis.kept}
    waits = [[analysis.wait_of(each) for each in step.awaited] for step in steps] if wait_known else []
    causes = {cause: [sum(wait.causes[cause] for wait in own) / 1e6 for own in waits] for cause in CAUSES}
    return binned(
        [step.duration_ns / 1e6 for step in steps],
        [step.wait_ns / 1e6 for step in steps] if wait_known else None,
        {cause: values for cause, values in causes.items() if any(values)},
        [step.start_ns in kept for step in steps],
    )


def binned(
    step_ms: Sequence[float],
    wait_ms: Sequence[float] | None,
    causes_ms: dict[str, list[float]],
    measured: Sequence[bool],
) -> StepColumns:
    """Keep up to `MOST_STEPS` steps as they are; of more make bins of one size, the last maybe smaller."""
    count = len(step_ms)
    size = 1 if count <= MOST_STEPS else -(-count // _BINS)
    starts = np.arange(0, count, size)
    sizes = np.diff(np.append(starts, count))

    def means(values: Sequence[float]) -> list[float]:
        sums: Floats = np.add.reduceat(np.array(values, dtype=np.float64), starts)
        return [float(value) for value in sums / sizes]

    lengths = np.array(step_ms, dtype=np.float64)
    longest = [int(start + lengths[start : start + size].argmax()) for start in starts]
    whole = np.logical_and.reduceat(np.array(measured, dtype=np.bool_), starts)
    return StepColumns(
        steps=count,
        bin=size,
        first=[int(start) for start in starts],
        measured=[bool(value) for value in whole],
        step_ms=means(step_ms),
        wait_ms=None if wait_ms is None else means(wait_ms),
        causes_ms={cause: means(values) for cause, values in causes_ms.items()},
        longest=longest,
        longest_ms=[float(lengths[number]) for number in longest],
        longest_wait_ms=None if wait_ms is None else [float(wait_ms[number]) for number in longest],
    )
