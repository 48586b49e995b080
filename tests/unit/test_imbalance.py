"""Collectives across ranks: matched, their skew, the rank that is late and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.device.accelerator import waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.collectives import RankTrace, match
from iotrace.analysis.device.imbalance import imbalance_of
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import Event, activity_of, annotation, data_wait, event, kernel, operator, step

DATA = Path(__file__).parent.parent / "data"


def nccl(
    start: float, end: float, sequence: int | None, group: str = "0", ranks: str = "[0, 1]"
) -> list[Event]:
    args: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 64,
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Ranks": ranks,
    }
    if sequence is not None:
        args["Seq"] = sequence
    return kernel(start, end, launched=start - 1, name="ncclDevKernel_AllReduce", stream=20, **args)


def gloo(start: float, end: float, elements: int, tid: int = 12) -> Event:
    return event(
        "user_annotation", "gloo:all_reduce", start, end, tid, Input_Dims=[[elements]], Input_type=["float"]
    )


def rank(number: int, *events: Event | list[Event]) -> RankTrace:
    activity = activity_of(*events)
    return RankTrace(number, activity, waits_of(activity))


def test_nccl_is_matched_by_group_and_sequence_without_common_clocks() -> None:
    # Rank 1 is late to 5, rank 0 to 6; rank 1's clock is 10000 us ahead, and it missed 4.
    first = rank(0, nccl(0, 10, 4), nccl(100, 150, 5), nccl(260, 270, 6), nccl(300, 310, 5, "1", "[0, 2]"))
    second = rank(1, nccl(10140, 10150, 5), nccl(10200, 10290, 6))
    matched, unmatched = match([first, second])
    assert [(one.last, one.real_ns, one.wait_ns(0), one.wait_ns(1)) for one in matched] == [
        (1, 10_000, 40_000, 0),
        (0, 10_000, 0, 80_000),
    ]
    # Number 4 of rank 0 alone, and one of a group whose other rank gave no trace.
    assert unmatched == 2


def test_nobody_is_late_where_several_come_last_together() -> None:
    """Ranks that wait as long as each other in all collectives made rank 0 late in all of them."""
    three, four = "[0, 1, 2]", "[0, 1, 2, 3]"

    def made(number: int, group: str, end: float = 150) -> RankTrace:
        return rank(number, nccl(0, 10, 4, "0", group), nccl(100, end, 5, "0", group))

    found = imbalance_of([made(number, three) for number in range(3)])
    assert found is not None
    assert [(one.last_to_arrive, one.waited_for_ms) for one in found.stragglers] == [(0, 0)] * 3
    assert [one.last_rank for one in found.worst] == [None, None]
    (kind,) = found.late_kinds
    assert (kind.matched, kind.tied, kind.last_rank, kind.last_count) == (2, 2, None, 0)
    # Three of four came last together: the fourth waited for them, which is no time of its own.
    found = imbalance_of([*(made(number, four) for number in range(3)), made(3, four, 190)])
    assert found is not None
    assert [one.waited_for_ms for one in found.stragglers] == [0] * 4
    assert next(one for one in found.ranks if one.rank == 3).communication_wait_ms == pytest.approx(0.04)


def test_without_collectives_nobody_knows_who_waits_for_whom() -> None:
    found = imbalance_of([rank(number, step(0, 0, 100)) for number in range(2)])
    assert found is not None
    assert [one.communication_wait_ms for one in found.ranks] == [None, None]
    assert found.spread["communication_wait"] is None


def test_gloo_is_matched_by_step_order_and_size() -> None:
    first = rank(
        0, step(7, 0, 100), step(8, 100, 200), gloo(10, 50, 8), gloo(20, 60, 16, 13), gloo(130, 135, 8)
    )
    second = rank(
        1,
        step(7, 0, 100),
        step(8, 100, 200),
        gloo(40, 50, 16),
        gloo(45, 50, 8, 13),
        gloo(110, 135, 8),
        gloo(5, 9, 3),
    )
    matched, unmatched = match([first, second])
    assert [(one.step, one.elements, one.last, max(one.durations_ns.values())) for one in matched] == [
        (7, 8, 1, 40_000),
        (7, 16, 1, 40_000),
        (8, 8, 0, 25_000),
    ]
    assert unmatched == 1


def test_the_late_rank_and_whether_its_data_made_it_late() -> None:
    def one(number: int, *, late: float, wait: float) -> RankTrace:
        return rank(
            number,
            step(1, 0, 200),
            data_wait(0, wait),
            operator("aten::mm", wait, late),
            gloo(late, 150, 8),
            operator("aten::add", 180, 200),
        )

    found = imbalance_of([one(0, late=30, wait=10), one(1, late=130, wait=70), one(2, late=40, wait=10)])
    assert found is not None
    straggler = found.stragglers[0]
    assert (straggler.rank, straggler.last_to_arrive, straggler.severity) == (1, 1, "critical")
    # Ranks 0 and 2 waited 100 and 90 us of their 200 us steps.
    assert straggler.waited_for_ms == pytest.approx(0.190)
    assert straggler.impact_pct == pytest.approx(100 * 190 / 400)
    (late,) = found.worst
    assert (late.step, late.last_rank) == (1, 1)
    assert late.skew_ms == pytest.approx(0.1)
    # It waited 60 us longer for data than the others; the other 40 us of its lateness are computation.
    assert late.late_by_data_ms == pytest.approx(0.06)
    assert straggler.by_data_pct == pytest.approx(60)
    for balance in found.ranks:
        parts = (balance.compute_ms, balance.communication_wait_ms, balance.data_wait_ms, balance.other_ms)
        assert sum(parts) == pytest.approx(balance.step_ms) == pytest.approx(0.2)
    assert [one.communication_wait_ms for one in found.ranks] == pytest.approx([0.1, 0, 0.09])
    assert found.spread["data_wait"] == pytest.approx((70 - 30) / 30)


@pytest.mark.parametrize(
    ("compute", "steps", "kind"),
    [(90, 3, "compute"), (10, 3, "host"), (50, 3, None), (90, 2, None)],
)
def test_what_made_a_rank_late_is_told_where_one_thing_did(
    compute: int, steps: int, kind: str | None
) -> None:
    """Rank 1 arrives 80 us later; of these it computes `compute` - 10."""

    def one(number: int, computes: int, arrives: int) -> RankTrace:
        made: list[Any] = []
        for each in range(steps):
            at = 200 * each
            made.append(step(each, at, at + 200))
            made.append(operator("aten::mm", at, at + computes))
            made.append(gloo(at + arrives, at + 150, 8))
        return rank(number, *made)

    found = imbalance_of([one(0, 10, 20), one(1, compute, 100)])
    assert found is not None
    late = found.stragglers[0]
    assert (late.rank, late.kind) == (1, kind)
    if kind == "compute":
        assert late.kind_ms == pytest.approx(0.08)


def test_a_wait_counts_for_the_step_whose_batch_it_was_for() -> None:
    # Steps begin at deliveries, as the agent's do: each wait lies at the end of the step before.
    early = rank(
        0, step(1, 0, 100), step(2, 100, 200), gloo(20, 60, 8), data_wait(99, 100), gloo(110, 190, 8)
    )
    late = rank(1, step(1, 0, 100), step(2, 100, 200), gloo(50, 60, 8), data_wait(65, 165), gloo(180, 190, 8))
    found = imbalance_of([early, late])
    assert found is not None
    second, first = found.worst
    assert (second.step, second.last_rank) == (2, 1)
    assert second.late_by_data_ms == pytest.approx(0.07)
    assert (first.step, first.last_rank, first.late_by_data_ms) == (1, 1, 0)


def test_lateness_from_before_the_window_has_no_known_cause() -> None:
    def one(number: int, *, began: float, wait: float) -> RankTrace:
        # 50 us from the window's start to the first collective; the second one follows a wait for data.
        first = began + 50
        return rank(
            number,
            step(1, began, 300),
            gloo(first, 200, 8),
            data_wait(200, 200 + wait),
            gloo(205 + wait, 290, 8),
        )

    found = imbalance_of([one(0, began=0, wait=5), one(1, began=100, wait=65)])
    assert found is not None
    straggler = found.stragglers[0]
    assert (straggler.rank, straggler.last_to_arrive) == (1, 2)
    assert [late.skew_ms for late in found.worst] == pytest.approx([0.1, 0.06])
    assert straggler.by_data_pct == pytest.approx(100)


def test_a_window_that_shows_no_cause_of_a_lateness_gives_no_share() -> None:
    early, late = (rank(number, step(1, at, 300), gloo(at + 50, 200, 8)) for number, at in ((0, 0), (1, 100)))
    found = imbalance_of([early, late])
    assert found is not None
    assert found.stragglers[0].last_to_arrive == 1
    assert found.stragglers[0].by_data_pct is None


def test_a_wait_behind_computation_is_no_wait() -> None:
    busy = rank(0, step(1, 0, 100), gloo(10, 60, 8), operator("aten::mm", 0, 100))
    found = imbalance_of([busy, rank(1, step(1, 0, 100), gloo(50, 60, 8), annotation("x", 0, 1))])
    assert found is not None
    assert found.collectives.skew_ms_max == pytest.approx(0.04)
    assert found.stragglers[0].waited_for_ms == 0
    assert found.stragglers[0].severity is None


def test_one_rank_has_no_imbalance() -> None:
    assert imbalance_of([rank(0, nccl(0, 10, 4))]) is None


def test_ranks_without_collectives_still_compare() -> None:
    found = imbalance_of([rank(0, operator("aten::mm", 0, 10)), rank(1, operator("aten::mm", 0, 30))])
    assert found is not None
    assert found.collectives.matched == 0
    assert found.collectives.skew_ms_mean is None
    assert found.stragglers == []


def test_two_real_ranks_by_gloo_one_with_a_slow_loader() -> None:
    ranks = []
    for number in (0, 1):
        activity = Activity(read_kineto(DATA / f"gloo_rank{number}.json.gz"))
        assert (activity.trace.rank, activity.trace.world_size) == (number, 2)
        ranks.append(RankTrace(number, activity, waits_of(activity)))
    found = imbalance_of(ranks)
    assert found is not None
    # One bucket of gradients in each of four steps; rank 1 sleeps 40 ms for each batch.
    assert (found.collectives.matched, found.collectives.unmatched) == (4, 0)
    straggler = found.stragglers[0]
    assert (straggler.rank, straggler.last_to_arrive, straggler.severity) == (1, 4, "critical")
    assert straggler.by_data_pct is not None
    assert straggler.by_data_pct > 90
    fast, slow = found.ranks
    assert slow.data_wait_ms > 30 > 10 > fast.data_wait_ms
    assert fast.communication_wait_ms > 20 > 1 > slow.communication_wait_ms
