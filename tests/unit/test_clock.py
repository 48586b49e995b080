"""From CLOCK_MONOTONIC to CLOCK_REALTIME by anchors, with made-up clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iotrace.sources.clock import Clock

EPOCH_NS = 1_795_000_000_123_456_789


@given(st.integers(0, 10**15))
def test_one_offset_is_applied_to_the_nanosecond(mono_ns: int) -> None:
    clock = Clock([[0, EPOCH_NS, 80], [10**9, EPOCH_NS + 10**9, 80]])
    assert clock.real_one(mono_ns) == EPOCH_NS + mono_ns


def test_a_step_of_the_clock_is_undone_on_both_sides_of_it() -> None:
    second, step = 10**9, 3_600 * 10**9
    anchors = [[i * second, EPOCH_NS + i * second + (step if i >= 5 else 0), 80] for i in range(10)]
    clock = Clock(anchors)
    assert clock.real_one(2 * second + 7) == EPOCH_NS + 2 * second + 7
    assert clock.real_one(7 * second + 7) == EPOCH_NS + 7 * second + 7 + step


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=50))
def test_order_is_kept_under_small_corrections(times: list[int]) -> None:
    clock = Clock([[i * 10**9, EPOCH_NS + i * (10**9 + 500), 80] for i in range(100)])
    converted = clock.real(sorted(times)).tolist()
    assert converted == sorted(converted)


def test_the_bound_is_the_worst_anchor() -> None:
    assert Clock([[0, EPOCH_NS, 80], [5, EPOCH_NS + 5, 900]]).bound_ns == 900
