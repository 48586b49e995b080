"""Lanes: nothing is dropped, and nothing overlaps without nesting."""

from __future__ import annotations

from hypothesis import given, strategies as st

from iotrace.timeline.model import Slice
from tests.support.lanes import lanes

slices = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(
        lambda pair: Slice(min(pair), max(pair), "x", "test")
    ),
    max_size=25,
)


@given(slices)
def test_every_slice_is_in_one_lane_and_lanes_nest(rows: list[Slice]) -> None:
    found = lanes(rows)
    assert sorted(id(item) for lane in found for item in lane) == sorted(map(id, rows))
    for lane in found:
        for one in lane:
            for other in lane:
                disjoint = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
                one_inside = other.start_ns <= one.start_ns and one.end_ns <= other.end_ns
                other_inside = one.start_ns <= other.start_ns and other.end_ns <= one.end_ns
                assert disjoint or one_inside or other_inside


def test_an_overlap_of_one_nanosecond_takes_a_second_lane() -> None:
    assert len(lanes([Slice(0, 11, "a", "t"), Slice(10, 20, "b", "t")])) == 2
    assert len(lanes([Slice(0, 10, "a", "t"), Slice(10, 20, "b", "t")])) == 1


def test_a_damaged_slice_may_end_after_the_last_time_that_integers_hold() -> None:
    assert len(lanes([Slice(0, 2**63 + 5, "a", "t"), Slice(10, 20, "b", "t")])) == 1
