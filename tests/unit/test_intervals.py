"""Interval arithmetic against an oracle that looks at every instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from iotrace.analysis.intervals import (
    Coverage,
    Shares,
    distinct,
    grouped,
    intersect,
    length,
    outer_first,
    pieces,
    split_exactly,
    subtract,
    union,
)

END = 40

interval = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair)))
intervals = st.lists(interval, max_size=8)
# Windows that are sorted and disjoint: the gaps between distinct sorted times.
windows = st.lists(st.integers(0, END), unique=True, max_size=9).map(
    lambda times: list(zip(sorted(times)[::2], sorted(times)[1::2], strict=False))
)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def instants(rows: list[tuple[int, int]]) -> set[int]:
    return {time for start, end in rows for time in range(start, end)}


@given(intervals)
def test_union_covers_the_same_instants_with_disjoint_sorted_intervals(rows: list[tuple[int, int]]) -> None:
    starts, ends = union(*columns(rows))
    assert instants(list(zip(starts.tolist(), ends.tolist(), strict=True))) == instants(rows)
    assert all(starts < ends)
    assert all(ends[:-1] < starts[1:])


@given(intervals, interval)
def test_coverage_measures_a_window(rows: list[tuple[int, int]], window: tuple[int, int]) -> None:
    measured = Coverage(*columns(rows)).within(*columns([window]))
    assert measured.tolist() == [len(instants(rows) & instants([window]))]


@given(intervals, windows)
def test_pieces_are_the_intersections(rows: list[tuple[int, int]], cuts: list[tuple[int, int]]) -> None:
    found = zip(*(column.tolist() for column in pieces(*columns(rows), *columns(cuts))), strict=True)
    expected = [
        (max(start, left), min(end, right), row, cut)
        for row, (start, end) in enumerate(rows)
        for cut, (left, right) in enumerate(cuts)
        if max(start, left) < min(end, right)
    ]
    assert sorted(found) == sorted(expected)


@given(intervals, intervals)
def test_shares_divide_each_instant_equally_outside_the_mask(
    rows: list[tuple[int, int]], masked: list[tuple[int, int]]
) -> None:
    shares = Shares(*columns(rows), mask=Coverage(*columns(masked))).of(*columns(rows))
    hidden = instants(masked)
    for (start, end), share in zip(rows, shares.tolist(), strict=True):
        expected = sum(
            1 / sum(other_start <= time < other_end for other_start, other_end in rows)
            for time in range(start, end)
            if time not in hidden
        )
        assert abs(share - expected) < 1e-6


@given(st.integers(0, 10**12), st.lists(st.floats(0, 1e9), min_size=1, max_size=6))
def test_split_is_exact_and_pro_rata(total: int, weights: list[float]) -> None:
    parts = split_exactly(np.array([total]), np.array([weights]))[0].tolist()
    whole = sum(weights)
    if whole == 0:
        assert parts == [0] * len(weights)
        return
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / whole) <= 1 + total * 1e-12


@given(intervals, intervals)
def test_intersection_and_difference_are_those_of_the_instants(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    one, other = union(*columns(first)), union(*columns(second))
    for found, expected in (
        (intersect(one, other), instants(first) & instants(second)),
        (subtract(one, other), instants(first) - instants(second)),
    ):
        assert instants(list(zip(found[0].tolist(), found[1].tolist(), strict=True))) == expected
        assert length(found) == len(expected)


def test_ranges_by_start_the_longest_of_each_first() -> None:
    chance = np.random.default_rng(4)
    for count in (0, 1, 2, 50, 300):
        starts = np.sort(chance.integers(0, 60, count)) + chance.integers(-2, 2, count)
        ends = starts + chance.integers(0, 9, count)
        assert outer_first(starts, ends).tolist() == np.lexsort((-ends, starts)).tolist()


@given(st.lists(st.integers(-5, 40) | st.integers(-(2**62), 2**62), max_size=60))
def test_different_integers_are_found_as_numpy_finds_them(values: list[int]) -> None:
    for some in (
        np.array(values, np.int64),
        np.array([each for each in values if -5 <= each <= 40], np.int64),
    ):
        known, first, of = np.unique(some, return_index=True, return_inverse=True)
        found = grouped(some)
        assert [each.tolist() for each in found] == [known.tolist(), first.tolist(), of.tolist()]
        assert distinct(some).tolist() == known.tolist()
