"""The ranks' loops beside each other: who is waited for over all steps, and where nothing tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.lockstep import lockstep_of
from iotrace.analysis.loop.rank_loop import ALONE, SHARED, RankLoop
from iotrace.analysis.results import (
    Collectives,
    Imbalance,
    Lockstep,
    RankBalance,
    RankReport,
    Steps,
    Straggler,
)
from iotrace.analysis.rules.facts.job import job_facts
from iotrace.analysis.rules.model import find_all
from tests.support.results import unknown

MS = 1_000_000
PARTS = (*ALONE, *SHARED)


def loop(rank: int, steps: list[dict[str, float]], *, device: bool = False, per_update: int = 1) -> RankLoop:
    """A rank whose steps take so many ms for each part, one after the other."""
    parts = np.array([[step.get(part, 0.0) * MS for part in PARTS] for step in steps]).astype(np.int64)
    ends = np.cumsum(parts.sum(axis=1))
    return RankLoop(
        rank=rank,
        starts_ns=np.append(0, ends[:-1]),
        ends_ns=ends,
        parts_ns=parts,
        first=0,
        measured=np.ones(len(ends), bool),
        per_update=per_update,
        has_device=device,
        cpu_ns=parts[:, [PARTS.index(part) for part in ("backward", "forward")]].sum(axis=1),
        cpu_delay_ns=np.empty(0, np.int64),
    )


def last(rank: int) -> Imbalance:
    """Of the profiled collectives: this rank comes last to them."""
    straggler = unknown(Straggler, rank=rank, last_to_arrive=1, severity="critical", waited_for_ms=1.0)
    none = Collectives(matched=1, unmatched=0)
    return unknown(Imbalance, ranks_seen=2, ranks=[], collectives=none, stragglers=[straggler])


def evaluates_each(every: int, ms: float) -> list[dict[str, float]]:
    return [{"other": 20.0, "backward": 2.0, "evaluation": 0.0 if k % every else ms} for k in range(1, 41)]


def waits_each(every: int, ms: float) -> list[dict[str, float]]:
    """The steps of a rank that goes on, and waits in the backward pass of its next step."""
    return [{"other": 20.0, "backward": 2.0 if k % every != 1 or k == 1 else 2.0 + ms} for k in range(1, 41)]


@pytest.mark.parametrize("every", [4, 5, 20])
def test_an_evaluation_of_one_rank_makes_the_others_wait(every: int) -> None:
    found = lockstep_of([loop(0, evaluates_each(every, 290.0)), loop(1, waits_each(every, 290.0))], None)
    assert found is not None
    waits = 40 // every - 1  # for the last evaluation another step would wait
    assert (found.late_rank, found.kind, found.steps) == (0, "evaluation", 40)
    assert found.wait_ms == pytest.approx(290.0 * waits / 40)
    assert [each.waits_ms for each in found.ranks] == [None, pytest.approx(290.0 * waits / 40)]
    facts = job_facts([], None, found)
    assert [each.rule for each in find_all("job", facts)] == (["IO802"] if found.wait_pct >= 10 else [])


def test_nobody_waits_for_an_evaluation_of_a_rank_that_trains_alone() -> None:
    """The other one goes on: it is eleven steps ahead after the first evaluation."""
    even = [{"other": 20.0, "backward": 2.0}] * 40
    assert lockstep_of([loop(0, evaluates_each(5, 290.0)), loop(1, even)], None) is None


def test_even_ranks_wait_for_nobody() -> None:
    even = [{"data": 5.0, "backward": 20.0}] * 40
    found = lockstep_of([loop(0, even), loop(1, even), loop(2, even)], None)
    assert found is not None
    assert (found.late_rank, found.wait_ms, found.kind) == (None, 0.0, None)


def test_ranks_that_all_evaluate_wait_for_nobody() -> None:
    found = lockstep_of([loop(rank, evaluates_each(5, 290.0)) for rank in range(2)], None)
    assert found is not None
    assert found.late_rank is None


def test_a_rank_late_by_its_data() -> None:
    slow = [{"data": 60.0, "backward": 3.0}] * 40
    fast = [{"data": 5.0, "backward": 58.0}] * 40
    found = lockstep_of([loop(0, fast), loop(1, slow), loop(2, fast)], None)
    assert found is not None
    assert (found.late_rank, found.kind) == (1, "data")
    assert found.wait_ms == pytest.approx(55.0)
    assert found.wait_pct == pytest.approx(100 * 55 / 63)
    # A device may work through the data wait of its host: then the others do not wait for it.
    devices = [loop(0, fast, device=True), loop(1, slow, device=True)]
    on_devices = lockstep_of(devices, None)
    assert on_devices is not None
    assert on_devices.late_rank is None


def test_few_profiled_steps_make_no_rank_late_that_works_as_long_as_others_over_all() -> None:
    straggler = unknown(
        Straggler, rank=1, impact_pct=17.0, kind="compute", late_by_ms={"compute": 80.0}, late_steps=5
    )
    own = [unknown(RankBalance, rank=rank, steps=5) for rank in range(2)]
    profiled = unknown(
        Imbalance, ranks_seen=2, ranks=own, collectives=None, stragglers=[straggler], late_steps=5
    )
    together = unknown(Lockstep, wait_pct=2.4, wait_ms=2.6, late_by_ms={}, ranks=[])

    def late(cpu_ms: float | None, accelerator: Any = None) -> bool:
        ranks = [
            unknown(
                RankReport,
                rank=rank,
                accelerator=accelerator,
                steps=unknown(Steps, thread_cpu_ms=each, thread_run_delay_ms=24.0),
            )
            for rank, each in enumerate((25.0, cpu_ms))
        ]
        return job_facts(ranks, profiled, together).late is not None

    assert not late(25.1)
    assert late(41.0)
    assert late(None)  # not known
    assert late(25.1, accelerator=object())  # a device works, not the thread


def test_whether_a_longer_pass_is_work_or_a_wait_the_collectives_tell() -> None:
    """Gradients are accumulated over four steps: the quick rank gets three steps ahead, and waits then."""
    slow = [{"forward": 30.0, "backward": 1.0}] * 40
    quick = [{"forward": 5.0, "backward": 101.0 if k % 4 == 3 else 1.0} for k in range(40)]
    ranks = [loop(0, slow, per_update=4), loop(1, quick, per_update=4)]
    assert (unseen := lockstep_of(ranks, None)) is not None
    assert unseen.late_rank is None
    found = lockstep_of(ranks, last(0))
    assert found is not None
    assert (found.late_rank, found.kind) == (0, "forward")
    assert found.wait_ms == pytest.approx(25.0)
    withheld = last(0)
    assert lockstep_of(ranks, unknown(Imbalance, withheld="clocks", stragglers=withheld.stragglers)) == unseen


def test_few_steps_and_one_rank_tell_nothing() -> None:
    even = [{"backward": 20.0}] * 40
    assert lockstep_of([loop(0, even)], None) is None
    assert lockstep_of([loop(0, even[:5]), loop(1, even)], None) is None


def timed(rank: int, steps: list[tuple[float, float, float]]) -> RankLoop:
    """A rank whose steps have a forward and a backward pass, and wait for the reduction of gradients."""
    return loop(rank, [dict(zip(("forward", "backward", "all_reduce"), step, strict=True)) for step in steps])


def test_a_longer_backward_pass_is_seen_where_reductions_are_timed() -> None:
    """Both backward passes end together; only what one of them waits tells who was late, and by how much."""
    ranks = [timed(0, [(20.0, 30.0, 52.0)] * 40), timed(1, [(33.0, 67.0, 2.0)] * 40)]
    found = lockstep_of(ranks, None)
    assert found is not None
    assert (found.late_rank, found.kind, found.pattern, found.timed_steps) == (1, "backward", "stays", 40)
    assert found.wait_ms == pytest.approx(50.0)
    assert found.late_by_ms == pytest.approx({"forward": 13.0, "backward": 37.0})
    assert (found.cpu_ms, found.cpu_delay_ms) == (pytest.approx(50.0), None)
    facts = job_facts([], last(0), found)  # all steps go before the profiled ones
    assert facts.late is not None
    assert facts.late.mostly == "work"
    assert (facts.late.rank, [each.rule for each in find_all("job", facts)]) == (1, ["IO804"])
    assert [each.late_steps for each in found.ranks] == [0, 40]


def test_a_longer_backward_pass_that_waits_for_nobody_makes_no_rank_late() -> None:
    """One logs while the other computes: they reach the reduction together."""
    even = timed(0, [(20.0, 50.0, 2.0)] * 40)
    logs = loop(1, [{"forward": 20.0, "other": 20.0, "backward": 30.0, "all_reduce": 2.0}] * 40)
    found = lockstep_of([even, logs], None)
    assert found is not None
    assert (found.late_rank, found.wait_ms) == (None, 0.0)
    assert job_facts([], last(1), found).late is None


def test_ranks_that_are_late_by_turns_over_all_steps() -> None:
    long, short = (30.0, 60.0, 2.0), (20.0, 40.0, 32.0)
    ranks = [timed(rank, [long if k % 2 == rank else short for k in range(40)]) for rank in range(2)]
    found = lockstep_of(ranks, None)
    assert found is not None
    assert (found.late_rank, found.pattern, found.late_steps) == (None, "moves", 40)
    assert [each.waits_ms for each in found.ranks] == pytest.approx([15.0, 15.0])
    assert (found.kind, found.late_pct) == ("backward", pytest.approx(100 * 15 / 92))
    assert found.cpu_ms == pytest.approx(30.0)
    facts = job_facts([], last(0), found)
    assert [each.rule for each in find_all("job", facts)] == ["IO805"]


def test_late_by_turns_is_decided_by_time_not_by_the_number_of_steps() -> None:
    """One rank evaluates each tenth step; the other one comes a little late to half of the rest."""
    evaluates, quick, late = (20.0, 900.0, 2.0), (20.0, 40.0, 10.0), (20.0, 48.0, 2.0)
    waits = (20.0, 40.0, 862.0)
    first = [evaluates if k % 10 == 9 else late if k % 2 else quick for k in range(40)]
    second = [waits if k % 10 == 9 else quick if k % 2 else late for k in range(40)]
    found = lockstep_of([timed(0, first), timed(1, second)], None)
    assert found is not None
    assert [each.late_steps for each in found.ranks] == [20, 20]
    assert (found.late_rank, found.pattern) == (0, "stays")
    late_one = job_facts([], None, found).late
    assert late_one is not None
    assert (late_one.rank, late_one.by_turns) == (0, 0)


def test_a_rank_that_is_late_no_more_than_by_chance_is_late_by_turns() -> None:
    """Of the steps of a noisy machine a few more, or longer ones, always are one rank's."""
    random = np.random.default_rng(0)
    waits = random.exponential(60.0, 100) * np.where(random.random(100) < 0.62, 1, -1)
    for more, late_rank, pattern in ((0.0, None, "moves"), (80.0, 0, "stays")):
        pairs = [((20.0, 100.0 + w, 2.0), (20.0, 100.0, 2.0 + w)) for w in np.abs(waits + more)]
        sides = [pair if wait > 0 else pair[::-1] for pair, wait in zip(pairs, waits + more, strict=True)]
        found = lockstep_of([timed(rank, [pair[rank] for pair in sides]) for rank in (0, 1)], None)
        assert found is not None
        assert (found.late_rank, found.pattern) == (late_rank, pattern)


def test_reductions_that_one_rank_alone_timed_are_backward_on_both() -> None:
    steps = [{"backward": 4.0, "all_reduce": 18.0, "other": 8.0}] * 40
    untimed = [{"backward": 22.0, "other": 8.0}] * 40
    found = lockstep_of([loop(0, untimed), loop(1, steps)], last(0))
    assert found is not None
    assert (found.late_rank, found.wait_ms) == (None, 0.0)
    assert [each.parts_ms["backward"] for each in found.ranks] == [22.0, 22.0]


def test_few_timed_reductions_tell_nothing() -> None:
    steps = [(20.0, 50.0, 2.0)] * 20 + [(20.0, 52.0, 0.0)] * 20
    found = lockstep_of([timed(0, steps), timed(1, steps)], None)
    assert found is not None
    assert (found.timed_steps, found.late_pct) == (None, None)


def test_what_a_rank_waits_itself_is_no_wait_for_it() -> None:
    """One rank is late in two thirds of the steps, the other one in the rest: what is left is its own."""
    late, quick = (20.0, 50.0, 2.0), (20.0, 40.0, 12.0)
    ranks = [
        timed(rank, [late if (k % 3 == 0) == bool(rank) else quick for k in range(42)]) for rank in range(2)
    ]
    found = lockstep_of(ranks, None)
    assert found is not None
    assert (found.pattern, found.wait_ms) == (None, pytest.approx(10 / 3))


def test_few_profiled_steps_that_name_both_ranks_name_none() -> None:
    """A rank waits in collectives by hand, a part of `other`: that is longer for the one that is not late."""
    late = loop(0, [{"forward": 30.0, "other": 10.0}] * 40)
    waits = loop(1, [{"forward": 20.0, "other": 20.0}] * 40)
    both = last(1)
    second = unknown(Straggler, rank=0, last_to_arrive=1, severity="warning", waited_for_ms=0.9)
    both = unknown(
        Imbalance, ranks_seen=2, ranks=[], collectives=both.collectives, stragglers=[*both.stragglers, second]
    )
    found = lockstep_of([late, waits], both)
    assert found is not None
    assert found.late_rank is None
