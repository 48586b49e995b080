"""A rank's loop as it is compared with the others': every step by what the training thread did."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.gaps import break_down
from iotrace.analysis.intervals import Intervals, Times, union
from iotrace.analysis.loop.thread_cpu import cpu_by_step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.checkpoints import saves_of, writes_of
from iotrace.session.names import BACKWARD, FORWARD, FORWARD_NO_GRAD, OPTIMIZER

# What no other rank can hold up; what may hold a wait for one, and what is left.
ALONE = ("evaluation", "checkpoint", "data", "writing")
ALL_REDUCE = "all_reduce"
SHARED = (ALL_REDUCE, BACKWARD, FORWARD, OPTIMIZER, "other")


class RankLoop(msgspec.Struct, frozen=True):
    """All steps of a rank's loop, evaluation in them: when each ended, ns, and its parts, which sum to it.

    `parts_ns` has a row a step, and the columns `ALONE` and `SHARED`. Steps before `first` warm up; those
    that are not `measured` were profiled. An optimizer's step comes each `per_update` of them.
    `cpu_ns`, `cpu_delay_ns`: what the thread computes in each, and waits for a CPU; empty where not known.
    """

    rank: int
    starts_ns: Times
    ends_ns: Times
    parts_ns: Times
    first: int
    measured: npt.NDArray[np.bool_]
    per_update: int
    has_device: bool
    cpu_ns: Times
    cpu_delay_ns: Times


def rank_loop_of(analysis: RankAnalysis) -> RankLoop | None:
    """Divide each step of the loop; None where none is known."""
    steps, main, kept = analysis.loop.steps, analysis.rank.main, analysis.kept
    if not len(kept):
        return None
    starts, ends = steps["start_ns"], steps["end_ns"]
    spans, texts = analysis.phase_spans, main.texts

    def called(*wanted: str) -> Intervals:
        numbers = [number for number, text in texts.items() if text in wanted]
        own = spans[np.isin(spans["name"], numbers)]
        return union(own["start_ns"], own["start_ns"] + own["duration_ns"])

    thread = analysis.loop.thread
    trains = thread is not None and len(thread.rounds.times_ns) > 0
    per_update = None if thread is None else thread.rounds.steps_to_an_update(starts, int(ends[-1]))
    passes, apart = steps.left_out, called(FORWARD_NO_GRAD) if trains else called()
    saves, awaited = saves_of(analysis), steps.awaited
    roles = [
        union(np.concatenate((passes[:, 0], apart[0])), np.concatenate((passes[:, 1], apart[1]))),
        (saves.starts, saves.ends),
        union(awaited["wait_start_ns"], awaited["delivered_ns"]),
        writes_of(analysis),
        analysis.collectives,
        *(called(name) for name in SHARED[1:-1]),
    ]
    cpu_ns, cpu_delay_ns = cpu_by_step(analysis, starts, ends)
    return RankLoop(
        rank=analysis.rank.number,
        starts_ns=starts,
        ends_ns=ends,
        parts_ns=break_down(roles, starts, ends)[0],
        first=int(np.searchsorted(starts, kept[0].start_ns)),
        measured=np.isin(starts, kept["start_ns"]),
        per_update=max(1, round(per_update or 1)),
        has_device=analysis.compute.has_device or bool((kept.exposed_ns != NONE).any()),
        cpu_ns=cpu_ns,
        cpu_delay_ns=cpu_delay_ns,
    )
