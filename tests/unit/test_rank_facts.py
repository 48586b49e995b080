"""What rules on a rank rest on beside its report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.rules.facts.rank import _reductions, _thrown_away
from iotrace.session.names import KIND_PHASE, KIND_REDUCTION
from iotrace.sources.processes import SPAN_DTYPE
from tests.support.tables import steps_of

MS = 1_000_000
STEPS = 8


def spans(kind: int, name: int, *steps: int) -> Any:
    """A span of 4 ms in each of these steps, which take 10 ms."""
    found = np.zeros(len(steps), SPAN_DTYPE)
    found["kind"], found["name"], found["duration_ns"] = kind, name, 4 * MS
    found["start_ns"] = np.array(steps, np.int64) * 10 * MS + MS
    return found


@pytest.mark.parametrize(
    ("reduced", "updated", "expected"),
    [
        (range(STEPS), (3, 7), {"reduced": 1.0, "updated": 0.25, "unused_ms": 3.0}),
        ((3, 7), (3, 7), {"reduced": 0.25, "updated": 0.25, "unused_ms": 0.0}),  # no_sync
        ((), (3, 7), {}),
    ],
)
def test_reductions_count_in_steps_without_an_update(
    reduced: Any, updated: Any, expected: dict[str, float]
) -> None:
    by_hand = spans(KIND_REDUCTION, 3, *range(STEPS))  # an all_reduce of the loss is none of gradients
    main = SimpleNamespace(
        texts={1: "all-reduce", 2: "optimizer", 3: "all_reduce"},
        spans=np.concatenate([spans(KIND_REDUCTION, 1, *reduced), by_hand]),
    )
    kept = np.zeros(STEPS, [("start_ns", np.int64), ("end_ns", np.int64)])
    kept["start_ns"], kept["end_ns"] = np.arange(STEPS) * 10 * MS, np.arange(1, STEPS + 1) * 10 * MS
    analysis: Any = SimpleNamespace(
        kept=kept,
        rank=SimpleNamespace(main=main),
        phase_spans=spans(KIND_PHASE, 2, *updated),
    )
    assert _reductions(analysis) == expected


@pytest.mark.parametrize(
    ("taken", "marked", "told"),
    [
        ((21, 1, 1, 1), False, (20, 0.2)),  # a run that goes on drops what it has trained on
        ((4, 4, 4, 4), False, (0, 0.0)),  # gradients of several batches
        ((23, 3, 1, 3), False, (20, 0.2)),
        ((21, 1, 1, 1), True, (0, 0.0)),  # where a mark begins the first step, nothing is known of it
        ((21,), False, (0, 0.0)),
    ],
)
def test_batches_before_the_first_step(taken: tuple[int, ...], marked: bool, told: tuple[int, float]) -> None:
    steps, at = [], 0
    for count in taken:
        waits = [Delivery(0, i, 0, 0, i, i * 20 * MS, (i * 20 + 10) * MS) for i in range(at, at + count)]
        steps.append(Step(waits[0], at * 20 * MS, (at + count) * 20 * MS, tuple(waits)))
        at += count
    analysis: Any = SimpleNamespace(loop=SimpleNamespace(steps=steps_of(steps), marked=marked))
    assert _thrown_away(analysis) == (told[0], pytest.approx(told[1]))
