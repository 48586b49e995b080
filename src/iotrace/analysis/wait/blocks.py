"""The measured steps as blocks of consecutive ones: what the intervals of a comparison are made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

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
    if not kept:
        return None
    size = -(-len(kept) // MOST_BLOCKS)

    def means_ms(each_ns: Sequence[float] | Times) -> list[float]:
        whole = np.array(each_ns[: len(each_ns) // size * size], dtype=np.float64)
        return [float(value) for value in whole.reshape(-1, size).mean(axis=1) / 1e6]

    phases_ms = {phase: means_ms(own) for phase, own in phases_ns.items()}
    lengths_ms = means_ms([step.duration_ns for step in kept])
    if analysis.source is None or analysis.loop.unknown_why:
        return StepBlocks(
            steps=size, step_ms=lengths_ms, wait_ms=[], causes_ms={}, files_ms={}, phases_ms=phases_ms
        )
    waits = [[analysis.wait_of(delivery) for delivery in step.awaited] for step in kept]
    totals: dict[str, float] = defaultdict(float)
    for own in waits:
        for wait in own:
            for path, (read_ns, decode_ns, _) in wait.files.items():
                totals[path] += read_ns + decode_ns
    costliest = sorted(totals, key=lambda path: -totals[path])[:_MOST_FILES]
    files = {path: [0.0] * len(kept) for path in costliest}
    for number, own in enumerate(waits):
        for wait in own:
            for path, (read_ns, decode_ns, _) in wait.files.items():
                if path in files:
                    files[path][number] += read_ns + decode_ns
    return StepBlocks(
        steps=size,
        step_ms=lengths_ms,
        wait_ms=means_ms([step.wait_ns for step in kept]),
        causes_ms={
            cause: means_ms([sum(wait.causes[cause] for wait in own) for own in waits]) for cause in CAUSES
        },
        files_ms={path: means_ms(files[path]) for path in costliest},
        phases_ms=phases_ms,
    )
