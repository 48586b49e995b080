"""What the training thread itself read in the measured steps: all that is known without a loader."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileCost, LoopReads
from iotrace.analysis.wait.production import compose


def loop_reads(analysis: RankAnalysis) -> LoopReads | None:
    """Sum up the thread's reading and decoding; None where the data wait is known, and without a step."""
    thread, kept, main = analysis.loop.thread, analysis.kept, analysis.rank.main
    if thread is None or not kept or not analysis.loop.unknown_why:
        return None
    calls = analysis.session.calls_of(main)
    own = replace(main, spans=main.spans[main.spans["tid"] == thread.tid])
    starts = np.array([step.start_ns for step in kept], dtype=np.int64)
    ends = np.array([step.end_ns for step in kept], dtype=np.int64)
    made = compose(
        own, calls.where(calls.tid == thread.tid), analysis.session.paths, starts, ends, inline=True
    )
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for files in made.files:
        for path, (read_ns, decode_ns, _) in files.items():
            totals[path][0] += read_ns
            totals[path][1] += decode_ns
    a_step = 1e-6 / len(kept)
    costs = [
        FileCost(
            path=path,
            ms=(read_ns + decode_ns) * a_step,
            read_ms=read_ns * a_step,
            decode_ms=decode_ns * a_step,
            transform_ms=0.0,
        )
        for path, (read_ns, decode_ns) in totals.items()
    ]
    read_ns, decode_ns = made.parts[:, :2].sum(axis=0).tolist()
    return LoopReads(
        read_ms=read_ns * a_step,
        decode_ms=decode_ns * a_step,
        files=sorted(costs, key=lambda cost: -cost.ms),
    )
