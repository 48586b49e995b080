"""What the training thread itself read in the measured steps, beside what it asked of loaders.

All that is known of the data without a loader; with one, reading that no data wait holds.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Intervals, subtract, union
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileCost, LoopReads
from iotrace.analysis.wait.item_reads import read_calls
from iotrace.analysis.wait.production import compose
from iotrace.session.names import KIND_MAPPED, KIND_READ_PATH

_WORTH_TELLING = 0.01  # of a step, where the data wait is known


def loop_reads(analysis: RankAnalysis) -> LoopReads | None:
    """Sum up the thread's reading and decoding; None without a step.

    Where the data wait is known, its asks and evaluations are left out; None where little is left.
    """
    thread, kept, main = analysis.loop.thread, analysis.kept, analysis.rank.main
    if thread is None or not len(kept):
        return None
    unknown = bool(analysis.loop.unknown_why)
    calls = analysis.session.calls_of(main)
    calls = calls.where((calls.tid == thread.tid) & read_calls(calls))
    spans = main.spans[main.spans["tid"] == thread.tid]
    starts, ends = (kept["start_ns"], kept["end_ns"]) if unknown else _beside_asks(kept)
    read = np.isin(spans["kind"], (KIND_READ_PATH, KIND_MAPPED))
    if not unknown:  # most of many steps hold no read
        at = np.concatenate((spans["start_ns"][read], calls.start_ns))
        held = np.unique(np.searchsorted(starts, at, side="right") - 1)
        held = held[held >= 0]
        starts, ends = starts[held], ends[held]
        if not len(held):
            return None
    made = compose(replace(main, spans=spans[read]), calls, analysis.session.paths, starts, ends, inline=True)
    spent_ns = made.parts[:, :2].sum(axis=0)
    if not unknown and spent_ns.sum() < _WORTH_TELLING * int(kept.duration_ns.sum()):
        return None
    a_step = 1e-6 / len(kept)
    costs = [
        FileCost(
            path=path,
            ms=(read_ns + decode_ns) * a_step,
            read_ms=read_ns * a_step,
            decode_ms=decode_ns * a_step,
            transform_ms=0.0,
        )
        for path, (read_ns, decode_ns, _) in made.files.totals().items()
    ]
    return LoopReads(
        read_ms=float(spent_ns[0]) * a_step,
        decode_ms=float(spent_ns[1]) * a_step,
        files=sorted(costs, key=lambda cost: -cost.ms),
    )


def _beside_asks(steps: StepTable) -> Intervals:
    """Return the steps' time without evaluations and without the waits in them, sorted and disjoint."""
    starts, ends, _ = steps.pieces
    asks = steps.awaited
    return subtract(union(starts, ends), union(asks["wait_start_ns"], asks["delivered_ns"]))
