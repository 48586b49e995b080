"""What processes hold at most without counting shared pages twice: by looks at it near the most alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.host.system import _proportional
from iotrace.sources.samples import MemoryRecord, Series

GIB = 1 << 30


@pytest.mark.parametrize(
    ("looked_ns", "least"),
    [
        ([10], None),  # while it still imports
        ([10, 30], 3 * GIB),
        ([39], None),  # when it holds half of it again
    ],
)
def test_looks_before_the_most_is_held_say_nothing(looked_ns: list[int], least: int | None) -> None:
    times = np.array([0, 10, 20, 30, 40])
    resident = Series(times, np.array([1.0, 1.0, 2.0, 4.0, 2.0]) * GIB)
    sizes = {10: GIB // 2, 30: 3 * GIB, 39: GIB}
    telemetry: Any = SimpleNamespace(
        memory=[MemoryRecord(mono_ns=at, processes=[(0, 0, sizes[at], 0, 0, 0, 0, 0)]) for at in looked_ns],
        looked_ns=looked_ns,
    )
    one: Any = SimpleNamespace(number=0, samples={"time_ns": times})
    assert _proportional(telemetry, [one], resident) == least
