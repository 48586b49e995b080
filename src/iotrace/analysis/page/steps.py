"""The loop's steps as columns; where there are many, bins that keep the longest step of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.page import StepColumns
from iotrace.analysis.wait.waits import CAUSES
from iotrace.sources.telemetry import Floats

MOST_STEPS = 1000  # of more, each entry is a bin
_BINS = 500


def step_columns(analysis: RankAnalysis, wait_known: bool) -> StepColumns | None:
    """Make the columns of all closed steps, measured or not; None where there are none."""
    steps = analysis.loop.steps
    if not len(steps):
        return None
    causes = np.zeros((len(steps), len(CAUSES)), np.int64)
    if wait_known:
        np.add.at(causes, steps.awaited_by, analysis.waits_for(steps.awaited).causes)
    return binned(
        steps.duration_ns / 1e6,
        steps.wait_ns / 1e6 if wait_known else None,
        {cause: own / 1e6 for cause, own in zip(CAUSES, causes.T, strict=True) if own.any()},
        np.isin(steps["start_ns"], analysis.kept["start_ns"]),
    )


def binned(
    step_ms: Floats,
    wait_ms: Floats | None,
    causes_ms: dict[str, Floats],
    measured: npt.NDArray[np.bool_],
) -> StepColumns:
    """Keep up to `MOST_STEPS` steps as they are; of more make bins of one size, the last maybe smaller."""
    count = len(step_ms)
    size = 1 if count <= MOST_STEPS else -(-count // _BINS)
    starts = np.arange(0, count, size)
    sizes = np.diff(np.append(starts, count))

    def means(values: Floats) -> list[float]:
        sums: Floats = np.add.reduceat(values, starts)
        return [float(value) for value in sums / sizes]

    longest = [int(start + step_ms[start : start + size].argmax()) for start in starts]
    whole = np.logical_and.reduceat(measured, starts)
    return StepColumns(
        steps=count,
        bin=size,
        first=[int(start) for start in starts],
        measured=[bool(value) for value in whole],
        step_ms=means(step_ms),
        wait_ms=None if wait_ms is None else means(wait_ms),
        causes_ms={cause: means(values) for cause, values in causes_ms.items()},
        longest=longest,
        longest_ms=[float(step_ms[number]) for number in longest],
        longest_wait_ms=None if wait_ms is None else [float(wait_ms[number]) for number in longest],
    )
