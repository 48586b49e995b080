"""How long the loop itself waits for the interpreter's lock between its items, and which stage makes it wait.

The wait is measured. Who had the lock is not: it is whose threads compute, where no other thread of the
process computes as much.
"""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import holding, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import PipelineStage, RankReport
from iotrace.session import names

_LEAST = 0.3  # of the wait: who has the lock computes as long, or lacks a CPU
_OTHERS = 0.25  # of what all stages compute: others that compute less have the lock less
_MUCH = 0.5  # of what the stage computes that computes most: such ones are named, too


class LoopTurns(msgspec.Struct, frozen=True):
    """What the loop waits for the interpreter beside its data wait, in ms a step, and who computes meanwhile.

    `who` are stages of the loop's items; empty: not known.
    """

    ms: float = 0.0
    who: str = ""


def loop_turns(analysis: RankAnalysis, report: RankReport) -> LoopTurns:
    """Look who shares the interpreter with the loop in its measured steps."""
    thread, kept, main = analysis.loop.thread, analysis.kept, analysis.rank.main
    rows = main.rows(names.LOCKED_ROW)
    number = next((each for each, text in main.texts.items() if text == names.TURN_AT), -1)
    if thread is None or not len(kept) or number < 0:
        return LoopTurns()
    rows = rows[(rows["file"] == number) & (rows["tid"] == thread.tid)]
    start_ns = np.asarray(main.clock.times_to_session_ns(rows["start_ns"]), np.int64)
    inside = holding(*union(kept["start_ns"], kept["end_ns"]), start_ns) >= 0
    ms = int(rows["waited_ns"][inside].sum()) / len(kept) / 1e6
    return LoopTurns(ms, _who_computes(report, ms))


def _who_computes(report: RankReport, waited_ms: float) -> str:
    """Name the stages whose threads compute beside the loop, if no other thread of its process does much."""
    step_ms, own_ms = report.steps.mean_ms, report.steps.thread_cpu_ms
    main = next((each for each in report.system.processes if each.role == "main"), None)
    if main is None or main.cpu_pct_mean is None or not step_ms or own_ms is None:
        return ""
    stages = {each.name: step_ms * _computing(each) for each in report.pipeline if each.of == "threads"}
    if not stages:
        return ""
    made_ms, most_ms = sum(stages.values()), max(stages.values())
    others_ms = main.cpu_pct_mean / 100 * step_ms - own_ms - made_ms
    if most_ms < _LEAST * waited_ms or others_ms > _OTHERS * made_ms:
        return ""
    return " and ".join(name for name in stages if stages[name] >= _MUCH * most_ms)


def _computing(stage: PipelineStage) -> float:
    """Return how many of its threads compute, on average; what is unknown is none."""
    return stage.busy * (stage.on_cpu_fraction or 0.0)
