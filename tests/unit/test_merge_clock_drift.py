"""Offset and drift found from matched collectives, with made-up clocks whose true map is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from iotrace.sources.clocks.session_clock import ClockMap, Fit, fit

EPOCH_NS = 1_795_000_000_123_456_789
SECOND = 10**9


def _clocks(
    count: int, span_ns: int, offset_ns: int, drift_ppm: float, jitter_ns: float, late: float, seed: int
) -> tuple[Any, Any, Any]:
    """Ends by the reference, by the other clock, and the reference's time of each of the other's.

    A share `late` of the ends is late by up to a tenth of the span, on either rank at random.
    """
    chance = np.random.default_rng(seed)
    true = EPOCH_NS + np.sort(chance.integers(0, span_ns, count))
    ends = []
    for _ in range(2):
        noise = np.abs(chance.normal(0, jitter_ns, count))
        outlier = (chance.random(count) < late / 2) * chance.integers(0, span_ns // 10 + 1, count)
        ends.append(true + np.rint(noise).astype(np.int64) + outlier)
    passed = (ends[1] - EPOCH_NS).astype(np.float64)
    other = ends[1] - offset_ns - np.rint(passed * drift_ppm / 1e6).astype(np.int64)
    return ends[0], other, ends[1]


def _fit(reference: Any, other: Any) -> Fit:
    return fit(reference, other, int(other.min()), int(other.max()))


clocks = st.fixed_dictionaries(
    {
        "count": st.integers(20, 600),
        "span_ns": st.sampled_from([SECOND // 100, SECOND, 100 * SECOND, 3600 * SECOND]),
        "offset_ns": st.integers(-(10**13), 10**13),
        "drift_ppm": st.floats(-150, 150),
        "jitter_ns": st.sampled_from([0.0, 50.0, 2_000.0, 100_000.0]),
        "late": st.sampled_from([0.0, 0.05, 0.3]),
        "seed": st.integers(0, 10**6),
    }
)


@settings(deadline=None, max_examples=200)
@given(clocks)
def test_the_true_map_lies_within_the_bound(given_clocks: dict[str, Any]) -> None:
    reference, other, true = _clocks(**given_clocks)
    found = _fit(reference, other)
    off = np.abs(found.map.times(other) - true)
    assert (off <= found.bound_ns).mean() >= 0.95


@pytest.mark.parametrize("count", [3, 5, 12])
def test_few_matches_have_a_wide_bound(count: int) -> None:
    """No search for the worst case here: of three matches, all may be late by the same."""
    held = []
    for seed in range(200):
        reference, other, true = _clocks(count, 10 * SECOND, 7, seed - 100.0, 20_000.0, 0.1, seed)
        found = _fit(reference, other)
        held.append((np.abs(found.map.times(other) - true) <= found.bound_ns).all())
    assert np.mean(held) >= 0.95


@settings(deadline=None, max_examples=200)
@given(clocks)
def test_no_drift_is_invented(given_clocks: dict[str, Any]) -> None:
    reference, other, _ = _clocks(**{**given_clocks, "drift_ppm": 0.0})
    assert _fit(reference, other).map.drift_ppb == 0


@pytest.mark.parametrize("late", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("drift_ppm", [-150.0, -3.0, 3.0, 23.0])
@pytest.mark.parametrize("count", [50, 5000])
def test_a_drift_is_found_whatever_ends_late(count: int, drift_ppm: float, late: float) -> None:
    reference, other, true = _clocks(count, 60 * SECOND, 7 * SECOND, drift_ppm, 2_000.0, late, seed=5)
    found = _fit(reference, other)
    assert found.map.drift_ppb == pytest.approx(drift_ppm * 1e3, abs=200)
    assert np.abs(found.map.times(other) - true).max() < 10_000


def test_late_ends_of_one_rank_alone_do_not_bend_the_line() -> None:
    """One-sided outliers that come in the second half of the trace only, as of a rank that slows down."""
    reference, other, true = _clocks(400, 60 * SECOND, 0, 20.0, 1_000.0, 0.0, seed=6)
    late = other.copy()
    late[200::2] += 30_000_000  # a quarter of all
    found = _fit(reference, late)
    assert found.map.drift_ppb == pytest.approx(20e3, abs=200)
    assert np.abs(found.map.times(other) - true).max() < 5_000


def test_the_nanosecond_is_kept_in_times_since_1970() -> None:
    other = EPOCH_NS + np.arange(100, dtype=np.int64) * SECOND
    found = _fit(other + 123_456_789_012_345_678, other)
    assert found.map.drift_ppb == 0
    assert (found.map.times(other) - other == 123_456_789_012_345_678).all()
    assert found.bound_ns <= 1
    drifted = other + 5 + np.arange(100) * 20_000
    found = _fit(drifted, other)
    assert found.map.drift_ppb == pytest.approx(20_000, abs=1e-6)
    assert np.abs(found.map.times(other) - drifted).max() <= 1


def test_a_slope_that_no_clock_has_is_refused() -> None:
    reference, other, _ = _clocks(100, 10 * SECOND, 0, 900.0, 100.0, 0.0, seed=7)
    found = _fit(reference, other)
    assert found.map.drift_ppb == 0
    assert found.refused_ppm == pytest.approx(900, rel=0.01)
    assert found.bound_ns > 4_000_000  # half of what it does over the trace
    # A trace that its profiler stretched goes on so beyond its matches.
    first, last = int(other.min()), int(other.max())
    beyond = fit(reference, other, first, last + 100 * SECOND)
    assert beyond.bound_ns > 100 * SECOND * 900 // 10**6


def test_what_lies_beyond_the_matches_widens_the_bound() -> None:
    for drift_ppm in (0.0, 40.0):
        reference, other, _ = _clocks(100, 10 * SECOND, 0, drift_ppm, 2_000.0, 0.0, seed=8)
        first, last = int(other.min()), int(other.max())
        within = fit(reference, other, first, last)
        beyond = fit(reference, other, first, last + 1000 * SECOND)
        assert beyond.map == within.map
        assert beyond.beyond_ns == 1000 * SECOND
        true_ns = int(np.rint(1000 * SECOND * drift_ppm / 1e6))
        off_ns = abs(beyond.map.shift_at(last + 1000 * SECOND) - beyond.map.shift_at(last) - true_ns)
        assert off_ns <= beyond.bound_ns
        assert beyond.bound_ns > within.bound_ns + 10_000


def test_three_matches_tell_an_offset_and_leave_any_drift_open() -> None:
    times = EPOCH_NS + np.array([0, 1, 2], np.int64) * SECOND
    found = fit(times + 77, times, EPOCH_NS, EPOCH_NS + 102 * SECOND)
    assert found.map.shift_ns == 77
    assert found.map.drift_ppb == 0
    assert found.bound_ns >= 100 * SECOND * 200 // 10**6


@given(
    st.integers(-(10**15), 10**15),
    st.floats(-200_000, 200_000),
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**10)), min_size=1, max_size=30),
)
def test_a_map_keeps_order_and_nesting(shift_ns: int, drift_ppb: float, spans: list[tuple[int, int]]) -> None:
    """Slices that nest do so afterwards, to the ns."""
    to_merged = ClockMap(shift_ns, drift_ppb, EPOCH_NS)
    starts = EPOCH_NS + np.array([start for start, _ in spans], np.int64)
    durations = np.array([length for _, length in spans], np.int64)
    ends = starts + durations
    new_starts = to_merged.times(starts)
    new_ends = new_starts + to_merged.durations(starts, durations)
    both, new_both = np.concatenate([starts, ends]), np.concatenate([new_starts, new_ends])
    order = np.argsort(both, kind="stable")
    assert (np.diff(new_both[order]) >= 0).all()
    same = np.flatnonzero(np.diff(both[order]) == 0)
    assert (np.diff(new_both[order])[same] == 0).all()
    assert (np.abs(new_ends - new_starts - durations) <= durations * abs(drift_ppb) / 1e9 + 1).all()


@given(
    st.tuples(st.integers(-(10**15), 10**15), st.floats(-200_000, 200_000)),
    st.tuples(st.integers(-(10**15), 10**15), st.floats(-200_000, 200_000)),
    st.integers(0, 10**13),
)
def test_maps_behind_each_other(one: tuple[int, float], two: tuple[int, float], distance_ns: int) -> None:
    first, second = ClockMap(*one, EPOCH_NS), ClockMap(*two, EPOCH_NS + 10**12)
    time_ns = EPOCH_NS + distance_ns
    both = first.compose(second)
    assert abs(both.map_one(time_ns) - second.map_one(first.map_one(time_ns))) <= 4
    assert abs(both.moved_to(time_ns).map_one(EPOCH_NS) - both.map_one(EPOCH_NS)) <= 4
    assert first.with_base(EPOCH_NS).map_one(distance_ns) == first.map_one(time_ns)
