"""Where the loop's own thread is while it waits for what it makes itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.wait_code import WaitCode, asleep_in_event_loop, code_of_waits, lock_held
from iotrace.session.names import IDLE_AT, LOCKED_ROW
from iotrace.sources.columns import Columns
from iotrace.sources.records import Identity, LoopStacks, StepCall
from iotrace.sources.rows import DTYPES
from tests.support.rows import process_of

MS = 1_000_000
FUNCTIONS = [
    ("train.py", "<module>", 1),
    ("train.py", "ask", 5),
    ("http.py", "send", 90),
    ("lib/asyncio/runners.py", "run", 160),
]
PATH = [(0, 30)]
IN_LOOP, IN_ASK, IN_SEND = [(0, 31)], [(1, 8), (0, 30)], [(2, 0), (1, 9), (0, 30)]


def found(stacks: list[int], workers: int = 0, in_loop: bool = False) -> WaitCode:
    """Look at what `waiting` makes."""
    return code_of_waits(*waiting(stacks, [IN_LOOP, IN_ASK, IN_SEND], workers, in_loop))


def waiting(
    stacks: list[int],
    every: list[list[tuple[int, int]]],
    workers: int = 0,
    in_loop: bool = False,
    pool: str = "",
    held: bool = True,
    looks: tuple[int, ...] = (),
    made: bool = False,
) -> tuple[RankAnalysis, LoaderRun]:
    """Of 30 steps of 10 ms, each of which waits for 6 ms at first; a sample 3 ms after the begin of each."""
    begun = np.arange(30) * 10 * MS
    times = [int(time) + 3 * MS for time in begun] + [9 * MS]
    numbers = [stacks[each % len(stacks)] for each in range(30)]
    told: list[Any] = [LoopStacks(1, times, [*numbers, 0], PATH, every, FUNCTIONS, held=[held] * len(every))]
    if in_loop:
        told.append(StepCall(0, "train", "train.py", 32, 1, [31], "load()", 0))
    texts = {9: f"{IDLE_AT}train.py:45"}
    main = process_of(Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1)), told, texts=texts)
    rows = [(tid, at, at, 6 * MS, 9) for tid in looks for at in times[:30]]
    main = replace(main, arrays={LOCKED_ROW: Columns.of(np.array(rows, DTYPES[LOCKED_ROW]))})
    waits = type("Waits", (Columns,), {"made": np.full(30, made)})(
        30, {"tid": 1, "wait_start_ns": begun, "delivered_ns": begun + 6 * MS}
    )
    about = SimpleNamespace(workers=workers, pool=pool)
    analysis = SimpleNamespace(
        loop=SimpleNamespace(thread=SimpleNamespace(tid=1)),
        kept=Columns(30, {"start_ns": begun, "end_ns": begun + 10 * MS}),
        rank=SimpleNamespace(main=main),
        session=SimpleNamespace(paths=SimpleNamespace(shown=str)),
    )
    run = SimpleNamespace(description=about, deliveries=waits)
    return cast(RankAnalysis, analysis), cast(LoaderRun, run)


@pytest.mark.parametrize(
    ("stacks", "line"),
    [([1], "ask (train.py:8)"), ([2], "ask (train.py:9)"), ([1, 1, 0], "ask (train.py:8)"), ([0], "")],
)
def test_most_samples_of_the_waits_tell_the_line(stacks: list[int], line: str) -> None:
    code = found(stacks)
    assert code.line == line
    assert code.share == (1.0 if line and 0 not in stacks else code.share)
    assert code.function == (line and "ask (train.py:5)")


def test_a_share_is_no_more_than_its_samples_tell() -> None:
    code = found([1, 1, 2])
    assert code.share == pytest.approx(2 / 3 - 2 * (2 / 9 / 30) ** 0.5)
    assert code.function_share == 1.0  # both lines are of one function


def test_what_workers_make_is_not_seen() -> None:
    assert found([1], workers=2) == WaitCode()


def test_a_loop_that_feeds_itself_waits_in_its_own_lines() -> None:
    assert found([0], in_loop=True) == WaitCode("train.py:31", 1.0)


IN_EVENT_LOOP = [(3, 0), (0, 31)]


@pytest.mark.parametrize(
    ("pool", "held", "asleep"),
    [("asyncio.Queue", False, 1.0), ("asyncio.Queue", True, 0.0), ("queue.Queue", False, 0.0)],
)
def test_an_event_loop_sleeps_where_no_coroutine_runs_and_nobody_has_the_lock(
    pool: str, held: bool, asleep: float
) -> None:
    every = [IN_LOOP, IN_EVENT_LOOP, [(1, 8), *IN_EVENT_LOOP]]
    assert asleep_in_event_loop(*waiting([1], every, 1, pool=pool, held=held)) == asleep
    assert asleep_in_event_loop(*waiting([2], every, 1, pool=pool, held=held)) == 0.0


@pytest.mark.parametrize(
    ("looks", "made", "asleep"),
    [((2,), False, 1.0), ((), False, 0.0), ((2,), True, 0.0), ((2, 3), False, 0.0)],
)
def test_an_event_loop_in_a_thread_of_its_own_is_looked_at(
    looks: tuple[int, ...], made: bool, asleep: float
) -> None:
    """Unless others make the items, or it is one of several."""
    asked = waiting([1], [IN_LOOP, IN_ASK], 1, pool="queue.Queue", looks=looks, made=made)
    assert asleep_in_event_loop(*asked) == asleep


@pytest.mark.parametrize("held", [True, False])
def test_samples_say_whether_somebody_has_the_lock_in_the_waits(held: bool) -> None:
    assert lock_held(*waiting([1], [IN_LOOP, IN_ASK], 1, pool="queue.Queue", held=held)) == held
    assert lock_held(*waiting([1], [IN_LOOP, IN_ASK], 1, pool="queue.Queue", held=held)) is not None
