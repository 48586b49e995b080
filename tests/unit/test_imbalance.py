"""Collectives across ranks: matched, their skew, the rank that is late and why."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from iotrace.analysis.device import collectives
from iotrace.analysis.device.accelerator import waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.collectives import LateBatch, RankTrace, match, rank_trace_of
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
    return rank_trace_of(number, activity, waits_of(activity))


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
        ranks.append(rank_trace_of(number, activity, waits_of(activity)))
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


def late_by(
    number: int, delays: list[float], *, by: str, device: bool = False, bound: int | None = None
) -> RankTrace:
    """A rank whose steps of 200 us reach their collective at 20 us + a delay, spent on `by`; real: 10 us."""
    made: list[Any] = []
    for each, delay in enumerate(delays):
        at = 200.0 * each
        made.append(step(each, at, at + 200))
        begin, end = at + 10, at + 10 + delay
        if by in ("data", "both") and delay:
            made.append(data_wait(begin, end))
        if by in ("compute", "both") and delay:
            made.append(kernel(begin, end, begin - 1) if device else operator("aten::mm", begin, end))
        start = at + 20 + delay
        made.append(nccl(start, at + 150, each) if device else gloo(start, at + 150, 8))
    activity = activity_of(*made)
    waits = waits_of(activity)
    batches = [LateBatch(row, 3, 77, "decode", "a.h5") for row in range(len(waits.starts_ns))]
    return rank_trace_of(number, activity, waits, bound, lambda first: batches[first:])


@pytest.mark.parametrize(
    ("by", "device", "kind"),
    [
        ("data", False, "data"),
        ("compute", False, "compute"),
        ("nothing", False, "host"),
        ("data", True, "data"),
        ("compute", True, "compute"),
        ("nothing", True, "launch"),
    ],
)
def test_a_late_rank_is_late_by_what_it_does_longer_than_the_first(by: str, device: bool, kind: str) -> None:
    ranks = [late_by(0, [0.0] * 5, by=by, device=device), late_by(1, [80.0] * 5, by=by, device=device)]
    found = imbalance_of(ranks)
    assert found is not None
    late = found.stragglers[0]
    assert (late.rank, late.kind, late.late_steps, found.pattern) == (1, kind, 5, "stays")
    assert late.late_by_ms == pytest.approx({kind: 0.4}, abs=0.01)
    assert late.impact_pct == pytest.approx(40)
    if kind == "data":
        assert (late.worker, late.pid, late.file, late.cause) == (3, 77, "a.h5", "decode")
        assert late.evidence == "it waits 0.1 ms a step longer for data: decode, a.h5, worker 3"
        assert (found.worst[0].worker, found.worst[0].file) == (3, "a.h5")
    else:
        assert (late.worker, late.file, found.worst[0].worker) == (None, None, None)


def test_a_delay_counts_once_however_many_collectives_were_pending() -> None:
    """DDP's buckets: rank 0 starts five all-reduces and waits in all of them while rank 1 waits for data."""

    def one(number: int, wait: float) -> RankTrace:
        made: list[Any] = []
        for at in (0.0, 300.0, 600.0):
            begun = at + wait + 10
            buckets = [gloo(begun + 2 * each, at + 150 + each, 8 + each, 12 + each) for each in range(5)]
            made += [step(int(at), at, at + 300), data_wait(at, at + wait), *buckets]
        return rank(number, *made)

    found = imbalance_of([one(0, 5), one(1, 105)])
    assert found is not None
    late = found.stragglers[0]
    assert (late.rank, late.last_to_arrive, late.kind) == (1, 15, "data")
    assert late.by_data_pct is not None
    assert late.by_data_pct > 90
    assert sum(late.late_by_ms.values()) == pytest.approx(0.3, rel=0.1)
    (kind,) = found.late_kinds
    assert kind.skew_ms == pytest.approx(0.3, rel=0.1)
    assert found.collectives.skew_ms_mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("workers", "named"), [([0, 1, 0, 1, 0, 1], None), ([0, 0, 0, 1], None), ([1] * 6, 1)]
)
def test_a_worker_is_named_where_chance_would_not_choose_it(workers: list[int], named: int | None) -> None:
    """Two workers share the late batches evenly, or so few are late that an even share may look like it."""
    delays = [80.0] * len(workers)
    other = late_by(1, delays, by="data")
    made = [LateBatch(row, worker, 70 + worker, "decode", "a.h5") for row, worker in enumerate(workers)]
    idle = LateBatch(-1, 1 - workers[0], 70, None, None)
    found = imbalance_of([late_by(0, [0.0] * len(workers), by="data"), replace(other, batches=[*made, idle])])
    assert found is not None
    assert (found.stragglers[0].kind, found.stragglers[0].file) == ("data", "a.h5")
    assert found.stragglers[0].worker == named


def test_nothing_is_known_of_another_start_of_a_restarted_job() -> None:
    found = imbalance_of([late_by(number, [80.0 * number] * 3, by="data") for number in range(2)])
    assert found is not None
    again = replace(found, incarnation=1)
    assert again.of(1, 0) == (None, None)
    assert again.of(1, 1) == again.of(1) == found.of(1)


def test_a_wait_that_the_device_works_through_makes_no_rank_late() -> None:
    """Rank 1 waits for data as long as it computes, and both begin together: its computing made it late."""
    found = imbalance_of([late_by(number, [80.0 * number] * 5, by="both", device=True) for number in (0, 1)])
    assert found is not None
    late = found.stragglers[0]
    assert (late.rank, late.kind, late.by_data_pct) == (1, "compute", 0)
    assert found.worst[0].data_wait_ms == pytest.approx(0.08)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 3), st.integers(0, 10**6), st.booleans())
def test_what_is_computed_counts_alike_by_kernels_and_summed_up(count: int, seed: int, device: bool) -> None:
    """Kernels under, across and beside collectives and data waits; ranks late by anything."""
    dice, job = random.Random(seed), str(list(range(count)))

    def made(number: int) -> list[Any]:
        events: list[Any] = []
        for each in range(4):
            at = 1000 * each + (700 if dice.random() < 0.2 and each else 0)
            events.append(step(each, 1000 * each, 1000 * each + dice.choice([900, 1000])))
            for _ in range(dice.randrange(12)):
                begin = at + dice.randrange(900)
                end = begin + dice.choice([1, 30, 200])
                events.append(kernel(begin, end) if device else operator("aten::mm", begin, end))
            for _ in range(dice.randrange(3)):
                begin = at + dice.randrange(600)
                events.append(data_wait(begin, begin + dice.choice([5, 90, 300])))
            for sequence in range(2):
                begin = at + 300 * sequence + dice.randrange(250)
                end = max(begin, at + 300 * sequence + 250) + dice.choice([0, 10])
                events.append(
                    nccl(begin, end, 2 * each + sequence, "0", job) if device else gloo(begin, end, 8)
                )
        return events

    activities = [activity_of(*made(number)) for number in range(count)]

    def ranks() -> list[RankTrace]:
        return [rank_trace_of(number, own, waits_of(own)) for number, own in enumerate(activities)]

    found = ranks()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collectives, "_summed", lambda compute, *_: compute)
        by_kernels = ranks()
    result = imbalance_of(found)
    assert result is not None
    assert result.collectives.matched == 8 or not device  # by step, and some lie in none
    assert result == imbalance_of(by_kernels)


def test_a_late_rank_that_moves_is_told_from_one_that_stays() -> None:
    turns = [[80.0 * (each % 3 == number) for each in range(9)] for number in range(3)]
    found = imbalance_of([late_by(number, own, by="data") for number, own in enumerate(turns)])
    assert found is not None
    assert (found.pattern, found.late_steps) == ("moves", 9)
    assert sorted(one.late_steps or 0 for one in found.stragglers) == [3, 3, 3]
    # Each of nine steps of 200 us has two ranks that wait 80 us, of three.
    assert found.late_pct == pytest.approx(100 * 2 * 80 / 600)
    few = imbalance_of([late_by(number, own[:4], by="data") for number, own in enumerate(turns)])
    assert few is not None
    assert (few.pattern, few.late_steps) == (None, 4)


@pytest.mark.parametrize(
    ("bounds", "named"),
    [((None, None), True), ((1_000, None), True), ((30_000, 30_000), True), ((50_000, 50_000), False)],
)
def test_no_rank_is_named_where_the_clocks_do_not_tell_who_was_last(
    bounds: tuple[int | None, int | None], named: bool
) -> None:
    """Rank 1 is 80 us late. Where no clock was compared, the durations alone tell."""
    ranks = [
        late_by(0, [0.0] * 5, by="data", bound=bounds[0]),
        late_by(1, [80.0] * 5, by="data", bound=bounds[1]),
    ]
    found = imbalance_of(ranks)
    assert found is not None
    assert (found.withheld is None) is named
    assert [one.rank for one in found.stragglers] == ([1, 0] if named else [])
    assert found.clock_bound_us == (None if None in bounds else pytest.approx(sum(bounds) / 1000))  # type: ignore[arg-type]
    if not named:
        assert found.withheld == (
            "no rank is named as late: clocks known to ± 0.1 ms do not confirm which was last in 5 of 5 "
            "collectives (skew 0.1 ms at most)"
        )
        assert (found.late_kinds[0].last_rank, found.late_kinds[0].unsure, found.late_kinds[0].tied) == (
            None,
            5,
            0,
        )
        assert (found.worst[0].last_rank, found.worst[0].late_by_data_ms, found.late_pct) == (
            None,
            None,
            None,
        )


def test_no_rank_is_named_where_clocks_and_durations_contradict_each_other() -> None:
    """Rank 1's collectives are the shorter ones, but it starts first, by clocks that agree to 2 us."""
    ranks = []
    for number, (start, end) in enumerate([(100, 190), (40, 70)]):
        made = [
            one
            for each in range(5)
            for one in (
                step(each, 200 * each, 200 * each + 200),
                gloo(200 * each + start, 200 * each + end, 8),
            )
        ]
        ranks.append(replace(rank(number, *made), clock_bound_ns=1_000))
    found = imbalance_of(ranks)
    assert found is not None
    assert found.withheld is not None
    assert found.stragglers == []


def test_a_profiler_that_started_later_is_no_lateness() -> None:
    """Rank 1's window begins 5 ms later: its first collective is late by that, the others are not."""

    def one(number: int, first: float) -> RankTrace:
        made: list[Any] = [step(0, first, 6000), gloo(first + 20, 5990, 8)]
        for each in range(1, 4):
            at = 6000 + 200 * each
            made += [step(each, at, at + 200), gloo(at + 20, at + 150, 8)]
        return rank(number, *made)

    found = imbalance_of([one(0, 0), one(1, 5000)])
    assert found is not None
    late = found.stragglers[0]
    assert (late.rank, late.waited_for_ms, late.severity, late.late_steps) == (1, 0, None, 0)
    assert late.before_window_ms == pytest.approx(5)


def test_a_rank_held_up_in_another_group_is_late_by_communication() -> None:
    def one(number: int, other: float) -> RankTrace:
        made: list[Any] = []
        for each in range(5):
            at = 200.0 * each
            made += [
                step(each, at, at + 200),
                nccl(at + 10, at + 20 + other, each, "1", f"[{number}, {number + 2}]"),
            ]
            made.append(nccl(at + 30 + other, at + 150, each))
        return rank(number, *made)

    def beside(number: int, other: float) -> RankTrace:
        made: list[Any] = []
        for each in range(5):
            at = 200.0 * each
            made += [
                step(each, at, at + 200),
                nccl(at + 10 + other, at + 20 + other, each, "1", f"[{number - 2}, {number}]"),
            ]
        return rank(number, *made)

    found = imbalance_of([one(0, 0), one(1, 60), beside(2, 0), beside(3, 60)])
    assert found is not None
    kinds = {each.rank: each.kind for each in found.stragglers}
    assert kinds[1] == "communication"
    assert kinds[3] == "launch"
