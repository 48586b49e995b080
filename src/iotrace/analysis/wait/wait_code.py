"""Which line the loop's own thread is at while it waits for what it makes itself, by samples of its stack.

A sample waits for the interpreter's lock, and so may come late where it could not ask for it: in the first
call of a wait that lets others run, which is mostly ours. Those at the loop's own line are left out where a
stand-in of ours makes the ask.
"""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import holding, union
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.records import LoopStacks, StepCall

_FEWEST = 20  # samples in waits
_Frame = tuple[int, int]


class WaitCode(msgspec.Struct, frozen=True):
    """The line that most samples of waits are at, with its function, and its share of them at the least."""

    line: str = ""
    share: float = 0.0


def code_of_waits(analysis: RankAnalysis, run: LoaderRun) -> WaitCode:
    """Look where the thread is in the measured waits for a loader that it iterates without workers."""
    thread, about, kept = analysis.loop.thread, run.description, analysis.kept
    if thread is None or about.workers or about.pool or not len(kept):
        return WaitCode()
    awaited = run.deliveries[run.deliveries["tid"] == thread.tid]
    inside = holding(kept["start_ns"], kept["end_ns"], awaited["wait_start_ns"]) >= 0
    waits = union(awaited["wait_start_ns"][inside], awaited["delivered_ns"][inside])
    in_loop = bool(analysis.rank.main.of_type(StepCall))
    counts: dict[str, int] = {}
    for record in analysis.rank.main.of_type(LoopStacks):
        if record.tid != thread.tid or len(record.times_ns) != len(record.numbers):
            continue
        late = [*record.since, *[0] * len(record.stacks)]
        lines = [
            _line(analysis, stack, record, in_loop, since)
            for stack, since in zip(record.stacks, late, strict=False)
        ]
        times = np.array(analysis.rank.main.clock.times_to_session_ns(record.times_ns), np.int64)
        for number in np.array(record.numbers, np.int64)[holding(*waits, times) >= 0].tolist():
            line = lines[number] if 0 <= number < len(lines) else ""
            counts[line] = counts.get(line, 0) + 1
    counts.pop("", None)
    samples = sum(counts.values())
    if samples < _FEWEST:
        return WaitCode()
    most = max(counts, key=lambda line: counts[line])
    share = counts[most] / samples
    return WaitCode(most, max(0.0, share - 2 * (share * (1 - share) / samples) ** 0.5))


def _line(analysis: RankAnalysis, stack: list[_Frame], record: LoopStacks, in_loop: bool, since: int) -> str:
    """Name the program's innermost line; without `in_loop` none of the loop's own function."""
    known = [(number, line) for number, line in stack if 0 <= number < len(record.functions)]
    at = next(((number, line) for number, line in known if line), None)
    if at is None or (not in_loop and at[0] in {number for number, _ in record.path}):
        return ""
    file, name, _ = record.functions[at[0]]
    shown = f"{analysis.session.paths.shown(file)}:{f'{since}-' if since else ''}{at[1]}"
    return shown if name == "<module>" else f"{name} ({shown})"
