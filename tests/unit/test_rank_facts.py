"""What rules on a rank rest on beside its report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.rules.facts.rank import _reductions
from iotrace.session.names import KIND_PHASE, KIND_REDUCTION
from iotrace.sources.processes import SPAN_DTYPE

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
