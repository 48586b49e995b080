"""Which line the loop's own thread is at while it waits for what it makes itself, by samples of its stack.

A sample waits for the interpreter's lock, and so may come late where it could not ask for it: in the first
call of a wait that lets others run, which is mostly ours. Those at the loop's own line are left out where a
stand-in of ours makes the ask.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter

import msgspec
import numpy as np

from iotrace.analysis.intervals import Intervals, distinct, holding, length, union
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.session.names import IDLE_AT, LOCKED_ROW
from iotrace.sources.records import LoopStacks, StepCall

_FEWEST = 20  # samples in waits
_MOSTLY = 0.5  # of the items
_EVENT_LOOPS = ("/asyncio/runners.py", "/asyncio/base_events.py")
_RUNS = ("run", "run_forever", "run_until_complete")
_NOWHERE = ("", "")
_Frame = tuple[int, int]


class WaitCode(msgspec.Struct, frozen=True):
    """The line that most samples of waits are at, with its function, and its share of them at the least.

    Likewise the function that most are in.
    """

    line: str = ""
    share: float = 0.0
    function: str = ""
    function_share: float = 0.0


def code_of_waits(analysis: RankAnalysis, run: LoaderRun) -> WaitCode:
    """Look where the thread is in the measured waits for a loader that it iterates without workers."""
    if run.description.workers or run.description.pool:
        return WaitCode()
    in_loop = bool(analysis.rank.main.of_type(StepCall))
    counts: dict[tuple[str, str], int] = {}
    for record, numbers in _in_waits(analysis, run):
        late = [*record.since, *[0] * len(record.stacks)]
        lines = [
            _line(analysis, stack, record, in_loop, since)
            for stack, since in zip(record.stacks, late, strict=False)
        ]
        for number in numbers:
            line = lines[number] if 0 <= number < len(lines) else _NOWHERE
            counts[line] = counts.get(line, 0) + 1
    counts.pop(_NOWHERE, None)
    samples = sum(counts.values())
    if samples < _FEWEST:
        return WaitCode()
    most, count = max(counts.items(), key=itemgetter(1))
    functions = Counter[str]()
    for (_, name), times in counts.items():
        functions[name] += times
    function, calls = functions.most_common(1)[0]
    of_function = _at_least(calls, samples) if function else 0.0
    return WaitCode(most[0], _at_least(count, samples), function, of_function)


def asleep_in_event_loop(analysis: RankAnalysis, run: LoaderRun) -> float:
    """Return the least share of the measured waits for a queue of asyncio's that its event loop slept in.

    No coroutine is on the thread's stack then, and nobody has the interpreter's lock: the event loop itself
    computes for an instant only. One beside the thread that is sampled, which runs the coroutines: by looks
    at it.
    """
    if not run.description.pool:
        return 0.0
    asleep = samples = 0
    for record, numbers in _in_waits(analysis, run) if run.description.pool.startswith("asyncio.") else ():
        held = [*record.held, *[True] * len(record.stacks)]
        sleeping = [_in_event_loop(stack, record) and not held[at] for at, stack in enumerate(record.stacks)]
        samples += len(numbers)
        asleep += sum(sleeping[number] for number in numbers if 0 <= number < len(sleeping))
    return _at_least(asleep, samples) if samples >= _FEWEST else _idle_beside(analysis, run)


def _idle_beside(analysis: RankAnalysis, run: LoaderRun) -> float:
    """The same of the one event loop beside what is sampled, where nobody is seen to make the items."""
    main, made = analysis.rank.main, run.deliveries.made
    rows = main.rows(LOCKED_ROW)
    idle = [number for number, text in main.texts.items() if text.startswith(IDLE_AT)]
    rows = rows[np.isin(rows["file"], idle)]
    waits = _measured_waits(analysis, run)
    if not len(made) or made.mean() >= _MOSTLY or len(distinct(rows["tid"])) != 1 or not length(waits):
        return 0.0
    inside = holding(*waits, np.asarray(main.clock.times_to_session_ns(rows["start_ns"]), np.int64)) >= 0
    share = min(1.0, int(rows["waited_ns"][inside].sum()) / length(waits))
    samples = int(inside.sum() / share) if share else 0
    return _at_least(int(inside.sum()), samples) if samples >= _FEWEST else 0.0


def lock_held(analysis: RankAnalysis, run: LoaderRun) -> float | None:
    """Return the share of the measured waits for a loader in which a thread had the interpreter's lock.

    Whoever makes batches in Python has it; calls that release it do not. None: too few samples, or not known.
    """
    held = samples = 0
    for record, numbers in _in_waits(analysis, run):
        known = [number for number in numbers if 0 <= number < len(record.held)]
        samples += len(known)
        held += sum(record.held[number] for number in known)
    return held / samples if samples >= _FEWEST else None


def _in_waits(analysis: RankAnalysis, run: LoaderRun) -> Iterator[tuple[LoopStacks, list[int]]]:
    """Yield what was sampled of the loop's thread: the numbers of the stacks in measured waits for `run`."""
    thread, waits = analysis.loop.thread, _measured_waits(analysis, run)
    if thread is None or not length(waits):
        return
    for record in analysis.rank.main.of_type(LoopStacks):
        if record.tid == thread.tid and len(record.times_ns) == len(record.numbers):
            times = np.array(analysis.rank.main.clock.times_to_session_ns(record.times_ns), np.int64)
            yield record, np.array(record.numbers, np.int64)[holding(*waits, times) >= 0].tolist()


def _measured_waits(analysis: RankAnalysis, run: LoaderRun) -> Intervals:
    thread, kept = analysis.loop.thread, analysis.kept
    awaited = run.deliveries[run.deliveries["tid"] == (-1 if thread is None else thread.tid)]
    inside = holding(kept["start_ns"], kept["end_ns"], awaited["wait_start_ns"]) >= 0
    return union(awaited["wait_start_ns"][inside], awaited["delivered_ns"][inside])


def _at_least(count: int, samples: int) -> float:
    """Return the share that so many of the samples tell at the least."""
    share = count / samples
    return max(0.0, share - 2 * math.sqrt(share * (1 - share) / samples))


def _in_event_loop(stack: list[_Frame], record: LoopStacks) -> bool:
    """Tell whether what the program called last is an event loop of asyncio's, which runs no coroutine."""
    number, line = stack[0] if stack else (-1, 0)
    if line or not 0 <= number < len(record.functions):
        return False
    file, name, _ = record.functions[number]
    return file.endswith(_EVENT_LOOPS) and name.rpartition(".")[2] in _RUNS


def _line(
    analysis: RankAnalysis, stack: list[_Frame], record: LoopStacks, in_loop: bool, since: int
) -> tuple[str, str]:
    """Name the program's innermost line, and its function; without `in_loop` none of the loop's own."""
    known = [(number, line) for number, line in stack if 0 <= number < len(record.functions)]
    at = next(((number, line) for number, line in known if line), None)
    if at is None or (not in_loop and at[0] in {number for number, _ in record.path}):
        return _NOWHERE
    file, name, first = record.functions[at[0]]
    path = analysis.session.paths.shown(file)
    shown = f"{path}:{f'{since}-' if since else ''}{at[1]}"
    function = name.rpartition("<locals>.")[2]
    return (shown, "") if name == "<module>" else (f"{name} ({shown})", f"{function} ({path}:{first})")
