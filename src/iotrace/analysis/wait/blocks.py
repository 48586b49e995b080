"""The measured steps as blocks of consecutive ones: what the intervals of a comparison are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import StepBlocks
from iotrace.analysis.wait.waits import CAUSES

MOST_BLOCKS = 64
_MOST_FILES = 8


def step_blocks(analysis: RankAnalysis, phases_ns: Mapping[str, Times]) -> StepBlocks | None:
    """Cut the measured steps into blocks of one size; what is left over at the end is in none of them.

    `phases_ns` has the time of each step in each phase.
    """
    kept = analysis.kept
    if not len(kept):
        return None
    size = -(-len(kept) // MOST_BLOCKS)

    def means_ms(each_ns: npt.NDArray[Any]) -> list[float]:
        whole = each_ns[: len(each_ns) // size * size].astype(np.float64)
        return [float(value) for value in whole.reshape(-1, size).mean(axis=1) / 1e6]

    phases_ms = {phase: means_ms(own) for phase, own in phases_ns.items()}
    lengths_ms = means_ms(kept.duration_ns)
    if analysis.source is None or analysis.loop.unknown_why:
        return StepBlocks(
            steps=size, step_ms=lengths_ms, wait_ms=[], causes_ms={}, files_ms={}, phases_ms=phases_ms
        )
    waits = analysis.measured_waits
    step = kept.awaited_by
    totals = {path: read_ns + decode_ns for path, (read_ns, decode_ns, _) in waits.files.totals().items()}
    costliest = sorted(totals, key=lambda path: -totals[path])[:_MOST_FILES]
    cost_ns, of_step = waits.files.read_and_decoded_ns, step[waits.files.owner]
    files = {}
    for path in costliest:
        own = waits.files.file == waits.files.names.number(path)
        files[path] = np.bincount(of_step[own], cost_ns[own], len(kept))
    return StepBlocks(
        steps=size,
        step_ms=lengths_ms,
        wait_ms=means_ms(kept.wait_ns),
        causes_ms={cause: means_ms(kept.summed(waits.of_cause(cause))) for cause in CAUSES},
        files_ms={path: means_ms(files[path]) for path in costliest},
        phases_ms=phases_ms,
    )
