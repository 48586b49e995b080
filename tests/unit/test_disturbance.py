"""What others did to a run: the step alone is an interval, and what holds all over it is a verdict."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from iotrace.analysis.compare.basis import basis_of
from iotrace.analysis.compare.comparison import compare
from iotrace.analysis.compare.results import Comparison
from iotrace.analysis.host.disturbance import (
    alone,
    grown_beside_others,
    is_disturbed,
    may_be_all_of_wait,
    taken_share,
)
from iotrace.analysis.results import DataWait, HostUse, ProcessUse, RankReport, Steps, System
from iotrace.analysis.verdict.reason import reason_of
from tests.support.results import unknown
from tests.unit.test_compare import checked, report


def run(
    decode: float = 1.0, others: float = 0.0, queueing_ms: float = 0.0, seed: int = 0, **known: Any
) -> dict[str, Any]:
    """A run of 10 ms of training and 40 ms of waiting a step, `queueing_ms` of these for busy CPUs."""
    found = report(seed, others=others, **known)
    (rank,) = found["ranks"]
    factor = decode + queueing_ms / 40
    for series in ("step_ms", "wait_ms"):
        rank["blocks"][series] = [
            value + (factor - 1) * wait
            for value, wait in zip(rank["blocks"][series], rank["blocks"]["causes_ms"]["decode"], strict=True)
        ]
    waited = [factor * value for value in rank["blocks"]["causes_ms"]["decode"]]
    rank["blocks"]["causes_ms"]["decode"] = waited
    wait_ms = sum(waited) / len(waited)
    rank["steps"]["mean_ms"] = sum(rank["blocks"]["step_ms"]) / len(waited)
    rank["data_wait"] |= {
        "raw_ms": wait_ms,
        "causes_ms": {"decode": wait_ms},
        "without_cpu_ms": {"decode": queueing_ms},
        "queueing_ms": queueing_ms,
    }
    rank["system"]["processes"] = [{"role": "main", "run_delay_pct_mean": 1.0}]
    rank["system"]["host"]["cpu_saturated_fraction"] = 0.9 if others else 0.0
    for stage in rank["stages"]:
        if stage["stage"] == "decode":
            for field in ("mean_ms", "quartile_ms"):
                stage[field] *= decode
            stage["blocks_ms"] = [decode * value for value in stage["blocks_ms"]]
    return found


def told(one: dict[str, Any], other: dict[str, Any]) -> Comparison:
    return compare(basis_of(one), basis_of(other))


def host(**known: Any) -> HostUse:
    return unknown(HostUse, **{"pressure_fraction": {}, "cgroup_pressure_fraction": {}, **known})


def test_only_cpus_that_others_took_from_the_job_are_a_disturbance() -> None:
    assert taken_share(host(others_cpu_fraction=0.5, cpu_busy_fraction=0.99)) == 0.5
    assert taken_share(host(others_cpu_fraction=0.5, cpu_busy_fraction=0.6)) == 0.0  # there were free ones
    assert taken_share(host(others_cpu_fraction=0.0, cpu_busy_fraction=0.6, cpu_stolen_fraction=0.3)) == 0.3
    assert taken_share(host()) is None
    assert not is_disturbed(host())
    assert not is_disturbed(host(others_cpu_fraction=0.04, cpu_busy_fraction=0.99))


def test_a_quiet_step_is_what_was_measured() -> None:
    (rank,) = basis_of(run(queueing_ms=30.0)).ranks  # its own workers queue for its CPUs
    found = alone(rank)
    assert (found.least_step_ms, found.least_wait_ms) == (found.step_ms, found.wait_ms)


def test_alone_a_step_takes_what_is_left_without_the_queueing() -> None:
    (rank,) = basis_of(run(others=0.5, queueing_ms=60.0)).ranks
    found = alone(rank)
    assert found.step_ms == pytest.approx(110, abs=3)
    # Less 1 % of the step in which the training thread queued, and an eighth for the caches.
    assert found.least_step_ms == pytest.approx((50 - 1.1) * 0.875, abs=3)
    assert found.least_step_ms < 50 < found.step_ms  # what it takes on a quiet machine
    assert found.is_counted


def test_what_is_read_from_pipes_is_no_queueing_for_a_cpu() -> None:
    document = run(others=0.5)
    wait = document["ranks"][0]["data_wait"]
    wait["queueing_ms"] = wait["raw_ms"]  # as if all of it were handing over, of which no account tells
    assert alone(basis_of(document).ranks[0]).least_wait_ms == pytest.approx(0.0, abs=1)
    wait["taking_least_ms"] = 20.0
    found = alone(basis_of(document).ranks[0])
    assert found.least_wait_ms == pytest.approx(0.875 * 20.0, abs=0.1)
    assert found.least_step_ms >= found.least_wait_ms


def test_others_cost_no_more_than_they_used() -> None:
    (rank,) = basis_of(run(others=0.1, queueing_ms=60.0)).ranks
    found = alone(rank)
    taken_ms = 0.1 * 2 * found.step_ms
    assert found.least_step_ms == pytest.approx((found.step_ms - taken_ms) * 0.975, abs=0.1)


def test_where_nobody_counted_others_may_have_cost_their_share() -> None:
    document = run(others=0.5, queueing_ms=60.0)
    document["ranks"][0]["data_wait"]["without_cpu_ms"] = None
    found = alone(basis_of(document).ranks[0])
    assert not found.is_counted
    assert found.least_step_ms == pytest.approx(0.5 * 0.875 * found.step_ms, rel=0.01)


@pytest.mark.parametrize(
    ("others", "queueing_ms"), [(0.3, 10.0), (0.3, 60.0), (0.5, 60.0), (0.5, 200.0), (0.8, 200.0)]
)
def test_the_same_program_beside_others_did_not_change(others: float, queueing_ms: float) -> None:
    quiet, busy = run(seed=1), run(others=others, queueing_ms=queueing_ms, seed=2)
    for found in (told(quiet, busy), told(busy, quiet)):
        assert found.verdict in ("unknown", "no-difference")
        assert found.alone_pct is not None
        assert found.alone_pct[0] <= 0 <= found.alone_pct[1]
    slower = told(quiet, busy)
    if slower.verdict == "unknown":
        assert slower.text.startswith("NOT CLEAR: ")
        assert "in B other programs took" in slower.text
        assert slower.remedy is not None


def test_what_others_cannot_have_done_is_told_with_what_it_is_at_least() -> None:
    before, after = run(4.0, others=0.5, queueing_ms=100.0), run(0.25, others=0.5, queueing_ms=5.0)
    found = told(before, after)
    assert (found.verdict, found.likely) == ("faster", False)
    assert re.match(r"FASTER \S+x: .* ms a step; at least \S+x without other programs$", found.text)
    assert found.alone_pct is not None
    on_quiet_cpus = 100 * (
        run(0.25)["ranks"][0]["steps"]["mean_ms"] / run(4.0)["ranks"][0]["steps"]["mean_ms"] - 1
    )
    assert found.alone_pct[0] <= on_quiet_cpus <= found.alone_pct[1]
    assert re.match(r"SLOWER \S+x: .*; at least ", told(after, before).text)


def test_cpu_time_carries_the_verdict_where_the_steps_do_not() -> None:
    before, after = run(1.0, others=0.5, queueing_ms=100.0), run(0.2, others=0.5, queueing_ms=40.0)
    found = told(before, after)
    assert found.alone_pct is not None
    assert found.alone_pct[1] > 0  # by the steps it is not clear
    assert (found.verdict, found.likely) == ("faster", True)
    assert found.text.startswith("LIKELY FASTER: ")
    assert "% less CPU in decode" in found.text
    # The steps got longer while samples got cheaper: nothing speaks for either.
    assert (
        told(run(1.0, others=0.5, queueing_ms=5.0), run(0.2, others=0.8, queueing_ms=200.0)).verdict
        == "unknown"
    )


def with_transform(document: dict[str, Any], cost_ms: float) -> dict[str, Any]:
    """The run with a transform of so many ms of CPU a sample, for which the loop waits, too."""
    (rank,) = document["ranks"]
    rank["stages"][-1] = {**rank["stages"][-1], "per_sample": 1.0, "mean_ms": cost_ms, "quartile_ms": cost_ms}
    rank["stages"][-1]["blocks_ms"] = [cost_ms] * 20
    rank["data_wait"]["causes_ms"]["transform"] = 4 * cost_ms
    return document


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        (0.72, "% less CPU in transform"),  # decode lies within what others may do: it says nothing
        (0.2, "% less CPU in transform"),  # for certain, but less of a sample
        (0.02, "% less CPU in decode"),
    ],
)
def test_the_stage_that_changed_most_carries_the_verdict(decode: float, said: str) -> None:
    before = with_transform(run(1.0, others=0.5, queueing_ms=100.0), 7.6)
    after = with_transform(run(decode, others=0.5, queueing_ms=40.0), 0.4)
    found = told(before, after)
    assert (found.verdict, found.likely) == ("faster", True)
    assert said in found.text
    (stage,) = (each for each in found.stages if each.what == "decode")
    assert (stage.ci95_pct[1] > 0) == (decode == 0.72)


def test_what_varies_by_itself_is_not_put_down_to_others() -> None:
    before, after = run(2.0, others=0.5, queueing_ms=10.0), run(0.5, others=0.5, queueing_ms=2.0)
    for document in (before, after):
        (rank,) = document["ranks"]
        rank["stages"] = []
        step_ms = rank["steps"]["mean_ms"]  # one step in thirty takes nearly all of the time
        rank["blocks"]["step_ms"] = [27.1 * step_ms if row % 30 == 0 else 0.1 * step_ms for row in range(60)]
    found = told(before, after)
    assert found.verdict == "unknown"
    assert "the steps vary" in found.text
    assert found.remedy == "run both for more steps"


def test_what_neither_others_nor_chance_did_is_likely() -> None:
    before, after = run(2.0, others=0.5, queueing_ms=10.0), run(0.5, others=0.5, queueing_ms=2.0)
    for document in (before, after):
        (rank,) = document["ranks"]
        rank["stages"] = []
        step_ms = rank["steps"]["mean_ms"]  # one step in ten takes nearly all of the time
        rank["blocks"]["step_ms"] = [9.1 * step_ms if row % 10 == 0 else 0.1 * step_ms for row in range(60)]
    found = told(before, after)
    assert (found.verdict, found.likely) == ("faster", True)
    assert found.text.endswith("other programs ran, but do not explain all of it")


def test_a_wait_that_others_may_have_made_is_said_to_be_so() -> None:
    def beside(queueing_ms: float, wait_ms: float = 20.0, thread_cpu_ms: float | None = None) -> str | None:
        processes = [unknown(ProcessUse, pid=1, role="main", run_delay_pct_mean=1.0)]
        wait = unknown(
            DataWait,
            raw_ms=wait_ms,
            raw_wait_fraction=wait_ms / 100,
            causes_ms={"transport": wait_ms},
            without_cpu_ms={"decode": 0.0},
            queueing_ms=queueing_ms,
            files=[],
        )
        busy = host(others_cpu_fraction=0.8, cpu_busy_fraction=0.99)
        rank = unknown(
            RankReport,
            rank=0,
            loaders=[],
            culprits=[],
            file_groups=[],
            steps=unknown(Steps, count=40, mean_ms=100.0, thread_cpu_ms=thread_cpu_ms),
            data_wait=wait,
            system=unknown(System, cpus=2, gpus=[], processes=processes, host=busy),
        )
        found = reason_of(rank)
        assert found["why"] == "handing batches over from the workers (transport) takes 100 % of the wait"
        return found["beside"]

    assert beside(20.0) == "other programs took 80 % of the CPUs: without that the loop may hardly wait"
    assert beside(5.0) is None
    # The loop itself computes in its wait, as a sampler does: that does not go away. Its training alone does.
    assert beside(80.0, wait_ms=80.0, thread_cpu_ms=60.0) is None
    assert beside(80.0, wait_ms=80.0, thread_cpu_ms=20.0) is not None


def test_one_long_wait_among_short_ones_is_none_for_a_cpu() -> None:
    def others_may_make_it(long_steps: int, cause: str = "unknown", first: int = 0) -> bool:
        wait = unknown(
            DataWait,
            raw_ms=100.0,
            causes_ms={cause: 100.0},
            without_cpu_ms={},
            queueing_ms=100.0,
            long_wait_steps=long_steps,
            long_wait_first=first,
        )
        processes = [unknown(ProcessUse, pid=1, role="main", run_delay_pct_mean=1.0)]
        busy = host(others_cpu_fraction=0.8, cpu_busy_fraction=0.99)
        system = unknown(System, cpus=2, gpus=[], processes=processes, host=busy)
        steps = unknown(Steps, count=40, mean_ms=1000.0)
        return may_be_all_of_wait(unknown(RankReport, steps=steps, data_wait=wait, system=system))

    assert others_may_make_it(30)
    assert not others_may_make_it(1)
    assert others_may_make_it(1, cause="transport")
    assert others_may_make_it(1, first=1)  # workers start


def test_beside_others_times_may_have_grown_by_their_share_and_more() -> None:
    quiet, some, most = (
        host(others_cpu_fraction=share, cpu_busy_fraction=0.99) for share in (0.0, 0.1, 0.75)
    )
    assert grown_beside_others([quiet, quiet], "wall") == 0.0
    assert [grown_beside_others([quiet, some], clock) for clock in ("cpu", "wall")] == [0.3, 1.0]
    assert grown_beside_others([some, most], "cpu") == pytest.approx(3.0)
    assert grown_beside_others([None], "cpu") == 0.3  # nobody knows


def test_a_check_fails_for_what_others_cannot_have_done() -> None:
    found = checked(run(4.0, others=0.5, queueing_ms=5.0), run(1.0, seed=3))
    assert "the step" in [finding.what for finding in found.worse]
    assert found.warnings == ["session run-0: other programs took 50 % of the CPUs"]
    assert found.warning_codes == ["IO959"]
    same = checked(run(others=0.5, queueing_ms=100.0), run(seed=3))
    assert (same.ok, [finding.what for finding in same.untold]) == (True, ["the step"])


def test_a_check_warns_of_a_baseline_that_says_little() -> None:
    weak = report(2, verdict={"text": "", "trust": {"level": "bad", "reasons": ["3 steps measured"]}})
    assert checked(report(1), weak).warnings == ["baseline run-2: 3 steps measured"]
    assert checked(report(1), weak).warning_codes == ["IO960"]
    assert checked(report(1), report(2)).warnings == []


def test_what_the_loop_computes_to_choose_samples_stays_without_the_others() -> None:
    """Its thread is ready all the time: here it has a CPU in 40 of 100 ms in which it wants one."""

    def left(cause: str, thread_cpu_ms: float | None = 20.0, queueing: float = 1.0) -> float:
        document = run(others=0.5)
        (rank,) = document["ranks"]
        wait_ms = rank["data_wait"]["raw_ms"]
        rank["data_wait"] |= {"causes_ms": {cause: wait_ms}, "queueing_ms": queueing * wait_ms}
        rank["system"]["processes"] = [{"role": "main", "run_delay_pct_mean": 60.0}]
        rank["steps"] |= {"mean_ms": 50.0, "thread_cpu_ms": thread_cpu_ms}
        (basis,) = basis_of(document).ranks
        return alone(basis).least_wait_ms / wait_ms

    assert left("sampling") == pytest.approx(0.4 * 0.875)
    assert left("sampling", queueing=0.0) == left("sampling")  # no worker makes them: no replay tells
    assert left("transport") < left("sampling")
    assert left("sampling", None) == left("transport", None) == 0


def test_a_wait_that_nobody_explains_is_no_queueing_where_no_thread_queued() -> None:
    """As of a thread that waits for a server: the kernel counts how long threads of the job were ready."""

    def may_be_all(**threads: float | int | None) -> bool:
        main = unknown(ProcessUse, pid=1, role="main", run_delay_pct_mean=3.0, **threads)
        taken = host(others_cpu_fraction=0.85, cpu_busy_fraction=1.0)
        wait = unknown(
            DataWait,
            raw_ms=90.0,
            causes_ms={"unknown": 90.0},
            without_cpu_ms={"decode": 0.0},
            exposed_ms=90.0,
        )
        system = unknown(System, gpus=[], processes=[main], host=taken, cpus=2)
        one = unknown(RankReport, rank=0, steps=unknown(Steps, count=50, mean_ms=100.0), data_wait=wait)
        return may_be_all_of_wait(msgspec.structs.replace(one, system=system))

    assert not may_be_all(threads_peak=3, pool_delay_pct_mean=4.0)
    assert may_be_all(threads_peak=3, pool_delay_pct_mean=40.0)
    assert may_be_all(threads_peak=3)  # not known of its other threads
    assert may_be_all(pool_delay_pct_mean=4.0)  # nor how many there are
