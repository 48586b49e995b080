"""From CLOCK_MONOTONIC to CLOCK_REALTIME by anchors, with made-up clocks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from iotrace.sources.clocks.realtime_correction import Stamper, restamp, restamp_one
from iotrace.sources.clocks.session_clock import Clock, ClockMap, Recording

SECOND = 10**9
EPOCH_NS = 1_795_000_000_123_456_789


@given(st.integers(0, 10**15))
def test_one_offset_is_applied_to_the_nanosecond(mono_ns: int) -> None:
    clock = Clock([[0, EPOCH_NS, 80], [10**9, EPOCH_NS + 10**9, 80]])
    assert clock.to_session_ns(mono_ns) == EPOCH_NS + mono_ns


def test_a_step_of_the_clock_changes_nothing_between_two_times() -> None:
    second, step = 10**9, 3_600 * 10**9
    anchors = [[i * second, EPOCH_NS + i * second + (step if i >= 5 else 0), 80] for i in range(10)]
    clock = Clock(anchors)
    for mono_ns in (2 * second + 7, 4 * second + second // 2, 7 * second + 7):
        assert clock.to_session_ns(mono_ns) == EPOCH_NS + mono_ns
    (found,) = clock.steps
    assert (found.by_ns, found.after_ns, found.before_ns) == (step, 4 * second, 5 * second)
    assert clock.bound_ns == 80


def test_a_slew_is_no_step_and_shows_in_the_bound() -> None:
    clock = Clock([[i * 10**9, EPOCH_NS + i * (10**9 + 500_000), 80] for i in range(11)])
    assert clock.steps == []
    assert not clock.matches_realtime
    assert clock.times_to_session_ns([5, 10**10]).tolist() == [EPOCH_NS + 5, EPOCH_NS + 10**10]
    assert clock.bound_ns == 10 * 500_000 + 80


@given(st.lists(st.integers(-200, 200), min_size=2, max_size=50))
def test_noise_of_the_readings_is_not_followed(noise: list[int]) -> None:
    clock = Clock([[i * 10**9, EPOCH_NS + i * 10**9 + error, 200] for i, error in enumerate(noise)])
    assert clock.matches_realtime
    stamps = np.arange(EPOCH_NS, EPOCH_NS + 5 * 10**9, 10**8 + 7)
    assert (restamp_one(clock, stamps) == stamps).all()
    assert abs(clock.to_session_ns(0) - EPOCH_NS) <= 200
    assert 200 <= clock.bound_ns <= 600


@given(st.data())
def test_stamps_around_steps_lie_within_the_bound(data: st.DataObject) -> None:
    """Calls of a few threads of one process, by a clock that was set; the truth is CLOCK_MONOTONIC."""
    draw = data.draw
    sizes = [draw(st.integers(3_000_000, 20 * SECOND)) * draw(st.sampled_from([1, -1])) for _ in range(2)]
    times = [draw(st.integers(first, first + 2)) * SECOND + draw(st.integers(0, SECOND)) for first in (3, 7)]
    steps = list(zip(times, sizes, strict=True))[: draw(st.integers(1, 2))]

    def told(mono_ns: int) -> int:
        return EPOCH_NS + mono_ns + sum(size for at, size in steps if at <= mono_ns)

    phases = draw(st.lists(st.integers(0, SECOND - 1), min_size=1, max_size=4))
    anchors = [[i * SECOND + at, told(i * SECOND + at), 80] for at in phases for i in range(14)]
    clock = Clock(anchors)
    chance = random.Random(draw(st.integers(0, 1000)))
    calls: list[tuple[int, int, int]] = []
    for thread in range(draw(st.integers(1, 3))):
        now = chance.randrange(4 * SECOND)
        while now < 13 * SECOND:
            end = now + chance.randrange(1_000, 30_000_000)
            calls.append((end, now, thread))
            now = end + int(chance.choice([1e4, 1e6, 1e8, 2e9]) * chance.random())
    calls.sort()
    start, end, thread = (np.array([call[i] for call in calls]) for i in (1, 0, 2))
    stampers = [
        Stamper(
            rows, draw(st.integers(0, 1)), draw(st.sampled_from([-(10**18), int(start[rows].min()) - 80]))
        )
        for rows in (np.flatnonzero(thread == number) for number in np.unique(thread))
    ]
    stamp = np.vectorize(lambda mono_ns: told(mono_ns) // 1000 * 1000, otypes=[np.int64])
    found = restamp(clock, stamp(start), stamp(end), stampers)
    allowed = found.unsure_ns + clock.bound_ns + 1_000
    assert np.abs(found.start_ns - clock.times_to_session_ns(start)).max() <= allowed
    assert np.abs(found.end_ns - clock.times_to_session_ns(end)).max() <= allowed
    for stamper in stampers if not found.unsure_ns else []:
        ends, starts = found.end_ns[stamper.rows], found.start_ns[stamper.rows]
        assert (starts[1:] - ends[:-1] >= -2 * (1_000 + clock.bound_ns)).all()
        assert (ends - starts >= -2 * (1_000 + clock.bound_ns)).all()


def test_a_busy_process_tells_when_its_clock_was_set() -> None:
    """Forward and back by more than the distance of anchors, and by less: nothing is left unsure."""
    for size in (7 * SECOND, -7 * SECOND, 300_000_000, -300_000_000):
        at = 5 * SECOND + 400_000_000

        def told(mono_ns: int, at: int = at, size: int = size) -> int:
            return EPOCH_NS + mono_ns + (size if mono_ns >= at else 0)

        clock = Clock([[i * SECOND, told(i * SECOND), 80] for i in range(10)])
        start = np.arange(0, 9 * SECOND, 10_000_000) + 3_000
        end = start + 9_000_000
        stamp = np.vectorize(told, otypes=[np.int64])
        found = restamp(clock, stamp(start), stamp(end), [Stamper(np.arange(len(start)))])
        assert found.unsure_ns == 0
        assert (found.start_ns == clock.times_to_session_ns(start)).all()
        assert (found.end_ns == clock.times_to_session_ns(end)).all()


def test_the_bound_is_the_worst_anchor() -> None:
    assert Clock([[0, EPOCH_NS, 80], [5, EPOCH_NS + 5, 900]]).bound_ns == 900


@pytest.mark.parametrize("by_ns", [40_000_000, -40_000_000])
def test_a_recording_right_beside_a_small_step_lies_right_or_nowhere(by_ns: int) -> None:
    """Between two anchors nobody knows which came first, the end of the recording or the step."""
    step_ns = 20 * SECOND - SECOND // 2
    clock = Clock([[i * SECOND, EPOCH_NS + i * SECOND + (by_ns if i >= 20 else 0), 80] for i in range(40)])
    for since_ns in range(18 * SECOND, 21 * SECOND, 37_000_000):
        until_ns = since_ns + 300_000_000
        stretch = 1 + (by_ns if since_ns < step_ns <= until_ns else 0) / (until_ns - since_ns)
        offset_ns = EPOCH_NS + (by_ns if step_ns <= since_ns else 0)
        for margin_ns in (1_000_000, 60_000_000):  # until the first event, and from the last one on
            first = since_ns + offset_ns + round(margin_ns * stretch)
            last = since_ns + offset_ns + round((until_ns - margin_ns - since_ns) * stretch)
            found = clock.map_if_single_segment(first, last, Recording(since_ns, until_ns))
            assert found is None or (stretch == 1 and found == ClockMap(EPOCH_NS - offset_ns))
            assert found is not None or (until_ns > 19 * SECOND and since_ns < 20 * SECOND)


def test_what_one_recording_stamped_is_moved_as_a_whole() -> None:
    """A trace of torch.profiler before a step, behind it, and across it."""
    for by_ns in (7 * SECOND, -7 * SECOND):
        anchors = [[i * SECOND, EPOCH_NS + i * SECOND + (by_ns if i >= 20 else 0), 80] for i in range(40)]
        clock = Clock(anchors)
        before = EPOCH_NS + 2 * SECOND
        behind = EPOCH_NS + 30 * SECOND + by_ns
        unknown = Recording()
        assert clock.map_if_single_segment(before, before + SECOND, unknown) == ClockMap(0)
        assert clock.map_if_single_segment(behind, behind + SECOND, unknown) == ClockMap(-by_ns)
        # Where stamps alone do not tell, the time of the recording does.
        stamp, recording = EPOCH_NS + 24 * SECOND + by_ns, Recording(22 * SECOND, 26 * SECOND)
        assert clock.map_if_single_segment(stamp, stamp + SECOND, recording) == ClockMap(-by_ns)
        stamp, recording = EPOCH_NS + 17 * SECOND, Recording(16 * SECOND, 18 * SECOND + SECOND // 2)
        assert clock.map_if_single_segment(stamp, stamp + SECOND, recording) == ClockMap()
        found = clock.map_if_single_segment(stamp, stamp + SECOND, unknown)
        assert found == (ClockMap() if by_ns > 0 else None)  # 7 s later it would have been the same stamps
        across = Recording(15 * SECOND, 21 * SECOND)
        assert clock.map_if_single_segment(before, before + 5 * SECOND, across) is None
        assert clock.lowest_stamp(10 * SECOND) == EPOCH_NS + 10 * SECOND + min(0, by_ns + 9 * SECOND)
