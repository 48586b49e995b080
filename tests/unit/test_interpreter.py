"""Whether the loop waits for the interpreter between its items, and who computes meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from iotrace.analysis.wait.interpreter import LoopTurns, loop_turns
from iotrace.session import names
from iotrace.sources.columns import Columns

LOOP, OTHER, MS = 1, 2, 1_000_000


def stage(name: str, busy: float, on_cpu: float | None, of: str = "threads") -> Any:
    return SimpleNamespace(name=name, busy=busy, on_cpu_fraction=on_cpu, of=of)


def turns(*stages: Any, waited_ms: int = 40, cpu_pct: float | None = 150.0, tid: int = LOOP) -> LoopTurns:
    """Ten steps of 100 ms, in each of which the loop waits so long, and computes for 50 ms."""
    steps = {"start_ns": 100 * MS * np.arange(10), "end_ns": 100 * MS * np.arange(1, 11)}
    starts = np.array([100 * MS * step + MS for step in range(10)] + [2000 * MS])  # the last: behind them
    waited = np.array([waited_ms * MS] * 10 + [500 * MS])
    columns = {"tid": np.full(11, tid), "start_ns": starts, "waited_ns": waited, "file": np.zeros(11, int)}
    main = SimpleNamespace(
        texts={0: names.TURN_AT},
        rows=lambda kind: Columns(11, columns),
        clock=SimpleNamespace(times_to_session_ns=lambda times: times),
    )
    analysis: Any = SimpleNamespace(
        loop=SimpleNamespace(thread=SimpleNamespace(tid=LOOP)),
        kept=Columns(10, steps),
        rank=SimpleNamespace(main=main),
    )
    processes = [SimpleNamespace(role="main", cpu_pct_mean=cpu_pct)]
    report: Any = SimpleNamespace(
        steps=SimpleNamespace(mean_ms=100.0, thread_cpu_ms=50.0),
        system=SimpleNamespace(processes=processes),
        pipeline=[*stages],
    )
    return loop_turns(analysis, report)


def test_the_stage_that_computes_beside_the_loop_is_named() -> None:
    assert turns(stage("read", 0.2, 0.1), stage("tokenize", 1.0, 0.95)) == LoopTurns(40.0, "tokenize")


def test_stages_that_compute_alike_are_named_together() -> None:
    assert turns(stage("tokenize", 1.0, 0.5), stage("crop", 1.0, 0.4)).who == "tokenize and crop"


def test_where_others_compute_as_much_nobody_is_named() -> None:
    assert turns(stage("tokenize", 1.0, 0.95), cpu_pct=200.0) == LoopTurns(40.0)
    assert turns(stage("tokenize", 1.0, 0.95), cpu_pct=None) == LoopTurns(40.0)


def test_a_stage_that_sleeps_or_works_in_processes_does_not_have_the_interpreter() -> None:
    assert turns(stage("fetch", 1.0, 0.05), cpu_pct=55.0) == LoopTurns(40.0)
    assert turns(stage("tokenize", 1.0, 0.95, "processes"), cpu_pct=50.0) == LoopTurns(40.0)
    assert turns(stage("tokenize", 1.0, None)) == LoopTurns(40.0)
    assert turns() == LoopTurns(40.0)


def test_what_other_threads_wait_is_not_the_loops() -> None:
    assert turns(stage("tokenize", 1.0, 0.95), waited_ms=0).ms == 0.0
    assert turns(stage("tokenize", 1.0, 0.95), tid=OTHER).ms == 0.0
