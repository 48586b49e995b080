"""The step-time breakdown against an oracle that looks at every instant."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from iotrace.analysis.device.gaps import break_down
from tests.support.kineto import MAIN, activity_of, annotation, data_wait, step
from tests.unit.test_intervals import columns, interval, intervals


@settings(deadline=None)
@given(st.lists(intervals, min_size=7, max_size=7), st.lists(interval, min_size=1, max_size=4))
def test_each_instant_belongs_to_the_first_role_that_covers_it(
    roles: list[list[tuple[int, int]]], steps: list[tuple[int, int]]
) -> None:
    exclusive_ns, raw_ns = break_down([columns(role) for role in roles], *columns(steps))
    for row, (start, end) in enumerate(steps):
        exclusive = [0] * 8
        raw = [0] * 8
        for instant in range(start, end):
            covers = [any(left <= instant < right for left, right in role) for role in roles]
            exclusive[covers.index(True) if any(covers) else 7] += 1
            raw = [length + cover for length, cover in zip(raw, [*covers, not any(covers)], strict=True)]
        assert exclusive_ns[row].tolist() == exclusive
        assert raw_ns[row].tolist() == raw
        assert exclusive_ns[row].sum() == end - start


def test_a_thread_that_fetches_ahead_does_not_wait_for_the_step() -> None:
    ahead = annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 90, MAIN + 1)
    activity = activity_of(step(1, 0, 100), data_wait(0, 10), ahead)
    assert [times.tolist() for times in activity.intervals(activity.data_waits)] == [[0], [10_000]]
    assert not activity.operators.any()
    assert activity_of(ahead).data_waits.any()  # without steps nobody knows which thread trains
