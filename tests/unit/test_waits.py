"""Splitting waits, counting steps, naming verdicts: made-up deliveries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.join import _sampled, loaders_of
from iotrace.analysis.loop.loaders import queue_depth
from iotrace.analysis.loop.measured import measured
from iotrace.analysis.loop.steps import Loop, loop_of
from iotrace.analysis.results import DataWait
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.data_wait import handed_over, is_of_the_loader, verdict
from iotrace.analysis.wait.explain import explained
from iotrace.analysis.wait.file_costs import FileCosts, FileNames
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Explained, behind_ready_ns
from iotrace.sources.records import Identity, IteratorStart
from iotrace.sources.session import Rank
from tests.support.rows import BatchRecord, process_of
from tests.support.tables import deliveries_of, split_wait, waits_of

START = IteratorStart(iterator=0, loader=0, dataset="D", workers=2, epoch=0, generation=0, mono_ns=0)


def delivery(index: int, wait_start_ns: int, delivered_ns: int, **stages: int) -> Delivery:
    return Delivery(
        loader=0,
        number=index,
        iterator=0,
        epoch=0,
        index=index,
        wait_start_ns=wait_start_ns,
        delivered_ns=delivered_ns,
        **stages,  # type: ignore[arg-type]
    )


stage = st.none() | st.integers(0, 200)


@given(st.integers(0, 100), st.integers(0, 100), stage, stage, stage)
def test_a_wait_is_split_without_a_rest(
    start: int, length: int, up: int | None, taken: int | None, prepared: int | None
) -> None:
    one = replace(delivery(0, start, start + length), up_ns=up, taken_ns=taken, prepared_ns=prepared)
    parts = split_wait(one)
    assert sum(parts) == length
    assert min(parts) >= 0


def test_the_parts_of_a_wait_lie_between_its_stages() -> None:
    one = delivery(3, 100, 200, up_ns=110, taken_ns=130, prepared_ns=190)
    assert split_wait(one) == (10, 20, 60, 10)


def test_a_batch_ready_before_it_was_asked_for_is_all_transport() -> None:
    assert split_wait(delivery(3, 100, 103, up_ns=1, taken_ns=2, prepared_ns=90)) == (0, 0, 0, 3)


def test_the_loop_chooses_the_samples_of_a_later_batch_once_it_has_this_one() -> None:
    rows: Any = {
        "worker": np.array([0, 0, -1]),
        "fetch_start_ns": np.array([-1, -1, 150]),
        "received_ns": np.array([60, 110, -1]),
        "pinned_ns": np.array([-1, 130, -1]),
        "sent_ns": np.array([5, 70, -1]),
        "delivered_ns": np.array([80, 140, 200]),
    }
    asked = np.array([50, 100, 120])
    assert _sampled(rows, asked, np.ones(3, bool)).tolist() == [10, 0, 30]
    by_torch = _sampled(rows, asked, np.zeros(3, bool)).tolist()
    assert (by_torch[:2], by_torch[2]) == ([NONE, NONE], 30)  # of torch's own samplers: without workers alone


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        # Of what the worker made in the wait nothing was seen.
        (
            {"taken_ns": 10, "prepared_ns": 50, "sent_ns": 5},
            {"transport": 30, "sampling": 20, "unknown": 10},
        ),
        ({"taken_ns": 40, "prepared_ns": 100}, {"unknown": 40, "sampling": 20}),  # made by the loop
        ({}, {"unknown": 40, "sampling": 20}),
    ],
)
def test_choosing_samples_is_a_part_of_the_wait(stages: dict[str, int], expected: dict[str, int]) -> None:
    one = delivery(0, 40, 100, sampled_ns=20, **stages)
    parts = np.full((1, len(PARTS)), 0.0 if stages else np.nan)
    (found,) = explained(deliveries_of([one]), parts, FileCosts.of(FileNames(), []), None)
    assert {cause: ns for cause, ns in found.causes.items() if ns} == expected
    assert sum(found.causes.values()) == 60


def loop_over(count: int) -> Loop:
    """A loop over `count` batches, each delivered 40 ns after it was asked for, that was left."""
    batches = [
        BatchRecord(
            iterator=0,
            epoch=0,
            generation=0,
            index=number,
            tid=1,
            wait_start_ns=1000 + 100 * number - 40,
            delivered_ns=1000 + 100 * number,
            grad=True,
            backward_count=0,
        )
        for number in range(count)
    ]
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, [START, *batches]), [])
    return loop_of(rank, loaders_of(rank))


def test_the_first_step_and_those_awaiting_a_workers_first_batch_are_left_out() -> None:
    kept, excluded = measured(loop_over(10).steps, workers=4)
    # Steps 0 to 8 are closed; step 0 is the first, steps 1 and 2 await batches 2 and 3.
    assert (excluded.first, excluded.warmup, len(kept)) == (1, 2, 6)
    assert [step.wait_ns for step in kept] == [40] * 6


def test_a_loop_that_was_left_has_no_last_step() -> None:
    steps = loop_over(5).steps
    assert [(step.start_ns, step.end_ns) for step in steps] == [
        (1000 + 100 * number, 1100 + 100 * number) for number in range(4)
    ]


def test_queue_depth_counts_what_lay_ready_when_asked() -> None:
    # Asked at 60, 160, 260; prepared at 10, 20 and 30, before all of it.
    ready = [delivery(i, 100 * i + 60, 100 * i + 61, prepared_ns=10 * i + 10) for i in range(3)]
    assert queue_depth(deliveries_of(ready)) == ((3 + 2 + 1) / 3, (3 + 2 + 1) / 3)


def test_what_lies_ready_behind_a_batch_in_the_making_is_not_in_turn() -> None:
    # Asked at 60, 160, 260, 360. The second batch is ready at 190 alone, the others before all of it.
    ready_ns = [10, 190, 20, 30]
    deliveries = [
        delivery(i, 100 * i + 60, max(100 * i + 61, prepared_ns + 1), prepared_ns=prepared_ns)
        for i, prepared_ns in enumerate(ready_ns)
    ]
    ready = queue_depth(deliveries_of(deliveries))
    assert ready == ((3 + 2 + 2 + 1) / 4, (1 + 0 + 2 + 1) / 4)


def test_verdicts_have_xprofs_bounds() -> None:
    assert [verdict(fraction) for fraction in (0.049, 0.05, 0.2, 0.21)] == [
        "not input-bound",
        "moderately input-bound",
        "moderately input-bound",
        "highly input-bound",
    ]
    assert [verdict(0.06, ready) for ready in (None, 0.9, 2.0)] == [
        "moderately input-bound",
        "moderately input-bound",
        "not input-bound",
    ]


@pytest.mark.parametrize(
    ("percent", "handing_over", "others", "told"),
    [
        (19.0, 0.1, True, True),  # the batch in turn was not made, though later ones lay ready
        (19.0, 0.1, False, True),
        (19.0, 0.9, True, False),
        (30.0, 0.9, True, False),
        (30.0, 0.9, False, True),
        (9.0, 0.0, True, False),
    ],
)
def test_a_wait_for_a_batch_in_its_turn_is_the_loaders_whatever_lies_ready(
    percent: float, handing_over: float, others: bool, told: bool
) -> None:
    assert is_of_the_loader(percent, handing_over, 2.0, others_may_make_it=others) is told


def test_to_unpickle_what_lies_ready_is_the_loaders() -> None:
    def share(transport: float, least_ms: float | None) -> float:
        return handed_over(
            DataWait(raw_ms=20.0, causes_ms={"transport": transport}, taking_least_ms=least_ms)
        )

    assert (
        share(18.0, None) == share(18.0, 0.5) == 0.9
    )  # small batches, and tensors: a pipe explains none of it
    assert share(18.0, 2.0) == 0.0
    assert verdict(0.17, 2.0, 0.9) == "not input-bound"
    assert verdict(0.17, 2.0, 0.0) == "moderately input-bound"
    assert verdict(0.58, 2.0, 0.9, others_may_make_it=True) == "not input-bound"
    assert verdict(0.58, 2.0, 0.9) == "highly input-bound"


def test_waits_behind_a_ready_batch_are_told_apart() -> None:
    slow = delivery(0, 100, 200, taken_ns=50, prepared_ns=190)
    ready = delivery(1, 205, 206, taken_ns=20, prepared_ns=90)
    late = delivery(2, 300, 340, taken_ns=120, prepared_ns=330)
    last = delivery(3, 400, 401, taken_ns=310, prepared_ns=350)
    deliveries = [slow, ready, late, last]
    waits = []
    for one in deliveries:
        startup, queued, production, transport = split_wait(one)
        causes = dict.fromkeys(CAUSES, 0)
        causes.update(startup=startup, queued=queued, read=production, transport=transport)
        waits.append(Explained(one, causes))
    # Batch 1 was ready when batch 0 was asked for; batch 3 was not yet when batch 2 was.
    assert behind_ready_ns(deliveries_of(deliveries), waits_of(waits)) == 90


def test_what_another_process_made_lies_ready_once_it_has_come() -> None:
    under_way = [
        delivery(i, 100 * i + 60, 100 * i + 90, prepared_ns=10 * i + 10, arrived_ns=100 * i + 80)
        for i in range(3)
    ]
    assert queue_depth(deliveries_of(under_way)) == (0, 0)
