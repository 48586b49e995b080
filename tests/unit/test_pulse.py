"""What the page of a run that goes on shows each second agrees with what the whole session says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iotrace.analysis.pulse import SECONDS, Pulses, _Rows
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.top import Watch
from iotrace.sources.live.session import LiveSession
from iotrace.sources.session import open_session
from tests.support.growing import MS, SECOND, Growing


def second_by_second(whole: RankAnalysis, begin_ns: int) -> list[tuple[int, float]]:
    """The batches of each second, and the share of it that was waited, by the slow way."""
    assert whole.primary is not None
    batches = [(each.wait_start_ns, each.delivered_ns) for each in whole.primary.deliveries]
    found = []
    for start_ns in range(begin_ns, begin_ns + SECONDS * SECOND, SECOND):
        end_ns = start_ns + SECOND
        count = sum(start_ns <= came_ns < end_ns for _, came_ns in batches)
        waited_ns = sum(max(0, min(end_ns, came) - max(start_ns, asked)) for asked, came in batches)
        found.append((count, waited_ns / SECOND))
    return found


def test_each_second_is_what_the_whole_session_says_of_it(tmp_path: Path) -> None:
    complete = Growing(tmp_path / "whole", workers=2, calls=1)
    complete.record(800)
    complete.end()
    (whole,) = SessionAnalysis(open_session(tmp_path / "whole")).ranks
    growing = Growing(tmp_path / "s", workers=2, calls=1)
    end_ns = growing.record(800)
    watch = Watch(LiveSession(growing.path))
    compared = 0
    for number, until_ns in enumerate(range(SECOND, end_ns, 600 * MS)):
        growing.grow(until_ns)
        if number % 4 == 1:  # between two looks only pulses read what has grown
            watch.look()
            continue
        for rank in watch._pulses.pulse(watch.windows, until_ns).ranks:
            if rank.newest is None:
                continue
            newest_ns = watch._pulses._rows[watch.windows[0].key].newest_ns
            clock = watch.windows[0].rank.main.clock
            last = max(until_ns // SECOND - 1, clock.to_session_ns(newest_ns) // SECOND)
            begin_ns = (last - SECONDS) * SECOND - clock.offset_ns  # of CLOCK_MONOTONIC
            slow = second_by_second(whole, begin_ns + whole.rank.main.clock.offset_ns)
            for shown, waited, (count, share) in zip(rank.batches, rank.waits, slow, strict=True):
                assert (shown is None) == (waited is None)
                if shown is not None and waited is not None:
                    assert shown == count
                    assert waited == pytest.approx(share, abs=1e-4)
                    compared += 1
    assert compared > 15


def test_nothing_is_said_of_seconds_after_the_newest_batch_or_before_the_first() -> None:
    rows = _Rows()
    assert rows.by_second(0) == ([None] * SECONDS, [None] * SECONDS)
    rows._asked = np.array([500, 1600, 2900]) * MS
    rows._came = np.array([1000, 2500, 4100]) * MS
    batches, waits = rows.by_second(0)
    assert batches[:5] == [None, 1, 1, 0, None]  # the second of the newest one may bring more
    assert waits[:5] == [None, 0.4, 0.6, 1.0, None]


def test_a_rank_without_a_known_loader_has_no_seconds(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "s", workers=1, calls=1)
    growing.record(2)
    live = LiveSession(growing.path)
    assert Pulses(live, "").pulse([], 0).ranks == []
