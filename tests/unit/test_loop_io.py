"""Writing in the loop: advised where it is, and not where it only looks so. Forty steps of 10 ms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Accelerator, Recommendation, Steps
from iotrace.analysis.wait.loop_io import loop_writes
from tests.support.results import unknown
from tests.support.rules import advised_by
from tests.support.tables import steps_of
from tests.unit.test_screen import NONE, rank
from tests.unit.test_slow_loop_steps import MS, TID, posix


def advised(*calls: tuple[str, float, float, int], every: int = 1, **known: Any) -> list[Recommendation]:
    """The advice where these calls, in ms since the step's begin, are made in every so many-th step."""
    steps = []
    for number in range(40):
        begin = number * 10 * MS
        one = Delivery(0, number, 0, 0, number, begin, begin + MS, TID)  # its wait: 1 ms
        steps.append(Step(one, begin, begin + 10 * MS, (one,), (), 1))
    made = [
        (name, 10 * number + at, 10 * number + until, tid, 100)
        for number in range(0, 40, every)
        for name, at, until, tid in calls
    ]
    analysis: Any = SimpleNamespace(
        kept=steps_of(steps),
        loop=SimpleNamespace(thread=SimpleNamespace(tid=TID), unknown_why=""),
        rank=SimpleNamespace(main=None),
        session=SimpleNamespace(
            calls_of=lambda _: posix(made), paths=SimpleNamespace(shown=lambda path: f"logs/{path}")
        ),
    )
    measured = unknown(Steps, count=40, excluded=NONE, mean_ms=10.0)
    writes = loop_writes(cast(RankAnalysis, analysis))
    return advised_by("IO502", rank(steps=measured, **known), writes=writes)


def test_what_waits_for_the_disk_in_each_step_is_synced_less_often() -> None:
    (found,) = advised(("write", 2, 2.5, TID), ("fsync", 3, 6, TID))
    assert found.gain_ms_per_step == pytest.approx(3.5)
    assert found.evidence == {"writing_ms": pytest.approx(3.5), "sync_ms": pytest.approx(3.0)}
    assert found.remedy == "sync ck.pt less often, or in a thread: the loop does it for 3.5 ms a step"
    assert "most of it to logs/ck.pt; 3.0 ms of that it waits for the disk (fsync)" in found.text
    assert found.severity == "high"


def test_what_is_written_in_each_step_is_written_less_often() -> None:
    (found,) = advised(("write", 2, 3, TID))
    assert found.remedy.startswith("write ck.pt less often")
    assert found.severity == "medium"


@pytest.mark.parametrize(
    ("calls", "every"),
    [
        ([("fsync", 3, 6, TID + 1)], 1),  # another thread's
        ([("fsync", 3, 3.4, TID)], 1),  # less than 5 % of the step
        ([("write", 2, 9, TID)], 8),  # a checkpoint now and then: a slow step
        ([("read", 2, 9, TID)], 1),  # told by `loop_reads`
        ([("write", 0, 1, TID)], 1),  # within the data wait
        ([], 1),
    ],
)
def test_what_only_looks_so_is_not_advised(calls: list[tuple[str, float, float, int]], every: int) -> None:
    assert advised(*calls, every=every) == []


@pytest.mark.parametrize(("idle_us", "told"), [(5.0, 0), (500.0, 1)])
def test_writing_beside_a_busy_device_gains_nothing(idle_us: float, told: int) -> None:
    device = unknown(Accelerator, span_us=1000.0, idle_us=idle_us)
    assert len(advised(("fsync", 3, 6, TID), accelerator=device)) == told
