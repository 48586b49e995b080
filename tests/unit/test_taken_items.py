"""What a loop takes from its queues: what says that no more comes is no batch, how many make them at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import FIELDS, Deliveries
from iotrace.analysis.loop.hops import Hops
from iotrace.analysis.loop.loaders import queue_depth
from iotrace.analysis.loop.taken_items import ends_of, most_at_once
from iotrace.analysis.table import NONE
from iotrace.sources.columns import Columns


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def taken(*kinds: str, queues: list[int] | None = None) -> tuple[Deliveries, Hops]:
    """What a loop took each 10 ns: items of these classes, from these queues."""
    count, known = len(kinds), [*dict.fromkeys(kinds)]
    columns: dict[str, Any] = {field: np.full(count, NONE) for field in FIELDS}
    times = 10 * np.arange(1, count + 1)
    columns |= {"tid": np.full(count, 7), "delivered_ns": times, "wait_start_ns": times - 2}
    deliveries = Deliveries(Columns(count, columns), {})
    kind = numbers(*(known.index(each) for each in kinds))
    unknown, queue = np.full(count, -1), numbers(*(queues or [0] * count))
    hops = Hops(deliveries, np.full(count, 7), queue, unknown, kind, known, [None] * (queue.max() + 1))
    return deliveries, hops


def ends(*kinds: str, queues: list[int] | None = None, trained: tuple[int, ...] = ()) -> list[int]:
    deliveries, hops = taken(*kinds, queues=queues)
    return np.flatnonzero(ends_of(deliveries, hops, numbers(*trained))).tolist()


EPOCHS = ["dict"] * 4 + ["End"] + ["dict"] * 4 + ["End"]
OF_EACH = [0] * 5 + [1] * 5


@pytest.mark.parametrize("kind", ["NoneType", "object", "type", "ellipsis", "StopIteration"])
def test_what_holds_no_data_is_no_batch_wherever_it_comes(kind: str) -> None:
    assert ends("tuple", kind, "tuple", "tuple", kind) == [1, 4]
    assert ends(kind, kind, kind, kind) == []  # else the loop has no items at all


def test_what_comes_last_of_each_queue_and_is_of_another_class_is_no_batch() -> None:
    assert ends(*EPOCHS, queues=OF_EACH) == [4, 9]
    assert ends(*EPOCHS[:4], "End", "End", queues=[0] * 6) == []  # a third of all
    assert ends(*["dict"] * 8, "End", "End", queues=[0] * 10) == [8, 9]  # each of two makers puts one


def test_what_is_trained_with_or_comes_in_between_is_a_batch() -> None:
    assert ends(*EPOCHS, queues=OF_EACH, trained=(15, 25, 35, 45, 55)) == []
    assert ends(*EPOCHS, queues=OF_EACH, trained=(15, 25, 35, 45, 105)) == []
    assert ends(*EPOCHS, queues=[0] * 10) == []  # the first one is not the last of its queue
    assert ends(*["dict"] * 4, "list", queues=[0, 0, 0, 0, 1]) == []  # all of its queue


def test_makers_that_follow_each_other_are_one() -> None:
    by = numbers(1, 1, 2, 2, 3)
    assert most_at_once(by, numbers(0, 5, 20, 25, 40), numbers(5, 10, 25, 30, 50)) == 1
    assert most_at_once(by, numbers(0, 5, 8, 25, 40), numbers(5, 10, 25, 30, 50)) == 2
    assert most_at_once(by, numbers(0, 5, 10, 25, 40), numbers(5, 10, 25, 30, 50)) == 1
    assert most_at_once(numbers(1), numbers(NONE), numbers(5)) == 1
    assert most_at_once(numbers(), numbers(), numbers()) == 0


def test_a_queue_holds_no_more_than_its_limit() -> None:
    deliveries, _ = taken(*["dict"] * 4)
    ahead = deliveries.changed(prepared_ns=np.arange(4))
    assert queue_depth(ahead).all == pytest.approx(2.5)
    assert queue_depth(ahead, 2).all == pytest.approx((2 + 2 + 2 + 1) / 4)
