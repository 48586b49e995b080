"""What a fix gains about, and at most: the rest of a step has the CPUs to itself once its cause is gone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.analysis.results import (
    DataWait,
    Fix,
    HostUse,
    LoaderResult,
    LoaderWait,
    ProcessUse,
    RankReport,
    Recommendation,
    Steps,
    System,
    Trust,
)
from iotrace.analysis.verdict.gains import FixGain, fixes_of, gain_of, rest_gets_quicker_by_ms, second_cause
from iotrace.report.words import gain_text
from tests.support.results import unknown


def rank(workers: int = 2, busy: float | None = None, process_pct: float = 20.0, **steps: Any) -> RankReport:
    """Steps of 100 ms that wait for 60: the training thread computes for 20, and queues for a CPU for 10."""
    known = {"mean_ms": 100.0, "thread_cpu_ms": 20.0, "thread_run_delay_ms": 10.0, **steps}
    wait = unknown(
        DataWait,
        raw_ms=60.0,
        exposed_ms=60.0,
        exposed_source="cpu",
        causes_ms={"transform": 60.0},
        by_loader=[unknown(LoaderWait, loader=0, raw_ms=60.0)],
        without_cpu_ms={"transform": 4.0},
    )
    main = unknown(ProcessUse, role="main", cpu_pct_mean=process_pct, library_threads={})
    return unknown(
        RankReport,
        steps=unknown(Steps, **known),
        data_wait=wait,
        loaders=[unknown(LoaderResult, id=0, primary=True, workers=workers)],
        system=unknown(
            System,
            gpus=[],
            processes=[main],
            shared_cores=False,
            host=unknown(HostUse, cpu_busy_fraction=busy) if busy else None,
        ),
        gain=[],
    )


def advice(gain_ms: float | None, code: str | None = "IO103", **known: Any) -> Recommendation:
    about = {"id": "a", "severity": "high", "text": "", "evidence": {}, "remedy": "do", "code": code}
    return Recommendation(**{**about, "gain_ms_per_step": gain_ms, **known})  # type: ignore[arg-type]


def told(found: FixGain) -> str:
    return gain_text(
        Fix(
            id="a",
            text="do",
            gain_ms_per_step=found.gain_ms,
            speedup=found.speedup,
            at_most=found.at_most,
            gain_interval_ms=found.interval_ms,
            most_ms_per_step=found.most_ms,
        )
    )


def test_the_rest_of_a_step_wins_no_more_than_the_job_computes_beside_it() -> None:
    # The job computes for 24 ms a step, 20 of them on the training thread: that one queued behind others.
    quiet = rank()
    system = replace(quiet.system, cpu_pct_mean=24.0, cpus_usable=[0, 1])
    assert rest_gets_quicker_by_ms(replace(quiet, system=system), 60.0) == pytest.approx(4 * 1.25)
    # What other ranks compute on the host may go with it.
    host = unknown(HostUse, cpu_busy_fraction=0.9, others_cpu_fraction=0.76)
    shared = replace(system, host=host)
    assert rest_gets_quicker_by_ms(replace(quiet, system=shared), 60.0) == pytest.approx(8 * 1.25)


def test_the_rest_of_a_step_queues_no_longer_and_computes_quicker() -> None:
    # Of 40 ms 30 are left, 20 of them computing: those are quicker by a quarter.
    assert rest_gets_quicker_by_ms(rank(), 60.0) == pytest.approx(10 + 5)
    # It queued for longer than the rest lasts, so in its waits, too: what it computes is left.
    assert rest_gets_quicker_by_ms(rank(thread_run_delay_ms=90.0), 60.0) == pytest.approx(40 - 20)
    # Where the loop itself makes all batches, nothing computed beside the rest of its step.
    inline = rank(workers=0, thread_cpu_ms=70.0)
    assert rest_gets_quicker_by_ms(inline, 60.0) == 0.0
    assert told(gain_of(advice(58.0), inline)) == "at most 2.5x faster"
    # What it makes beside workers is no computing that is left; it queued for 4 ms while it made it.
    beside = replace(inline, loaders=[*inline.loaders, unknown(LoaderResult, id=1, workers=2)])
    assert rest_gets_quicker_by_ms(beside, 60.0) == pytest.approx(6 + 2.5)
    # Where two CPUs may share a core, it is quicker by half.
    shared = rank()
    shared = replace(shared, system=replace(shared.system, shared_cores=None))
    assert rest_gets_quicker_by_ms(shared, 60.0) == pytest.approx(10 + 10)
    # A device computes in what is left.
    device = rank()
    on_device = replace(device.data_wait, exposed_source="kernels", stall_fraction=0.6)
    assert rest_gets_quicker_by_ms(replace(device, data_wait=on_device), 60.0) == pytest.approx(10)


def with_worker(found: RankReport, cpu_pct: float, delay_pct: float) -> RankReport:
    """The same with a worker that runs, and queues for a CPU, for so much of the time."""
    worker = unknown(
        ProcessUse, role="worker 0", cpu_pct_mean=cpu_pct, run_delay_pct_mean=delay_pct, library_threads={}
    )
    processes = [*found.system.processes, worker]
    system = replace(found.system, processes=processes, cpu_pct_mean=20.0 + cpu_pct, cpus_usable=[0, 1])
    return replace(found, system=system)


def test_the_training_queues_no_longer_for_what_a_fix_spares_alone() -> None:
    """It computes for 20 ms: behind one worker that runs or is ready half of the time it queues for 12.5."""
    behind = with_worker(rank(thread_run_delay_ms=30.0), cpu_pct=30.0, delay_pct=20.0)
    # A worker that is gone leaves the 17.5 ms behind other programs, and what it computes.
    assert rest_gets_quicker_by_ms(behind, 60.0) == pytest.approx(12.5 + 5)
    # A tenth of its work takes a tenth of that.
    assert rest_gets_quicker_by_ms(behind, 60.0, 0.1) == pytest.approx(1.25 + 0.5)
    whole, tenth = (
        gain_of(advice(10.0, most_ms_per_step=12.0, spares_fraction=share), behind) for share in (None, 0.1)
    )
    assert (whole.most_ms, tenth.most_ms) == (pytest.approx(29.5), pytest.approx(13.75))
    assert told(tenth) == "at most 1.2x faster"
    # None of it makes a step shorter than what its thread computes.
    crowded = with_worker(rank(thread_run_delay_ms=90.0), cpu_pct=90.0, delay_pct=90.0)
    assert gain_of(advice(59.0), crowded).most_ms == pytest.approx(80.0)


def test_where_nobody_counted_the_queueing_nothing_bounds_a_gain() -> None:
    uncounted = rank(thread_run_delay_ms=None)
    assert rest_gets_quicker_by_ms(uncounted, 60.0) is None
    assert told(gain_of(advice(50.0), uncounted)) == "about 2.0x faster, perhaps more"
    assert told(gain_of(advice(3.0), uncounted)) == "about 3.0 ms a step, perhaps more"
    assert told(gain_of(advice(95.0), replace(uncounted, data_wait=unknown(DataWait)))) == (
        "about 95 % shorter steps, perhaps more"
    )
    # Threads of the training's operators may have queued while its own thread waited for them.
    assert rest_gets_quicker_by_ms(rank(process_pct=40.0), 60.0) is None
    # Where a CPU was free, nothing queued.
    free = rank(busy=0.3, thread_run_delay_ms=None)
    assert rest_gets_quicker_by_ms(free, 60.0) == pytest.approx(5)
    # Sampled once a second, where the thread's own account was not.
    main = replace(uncounted.system.processes[0], run_delay_pct_mean=10.0)
    sampled = replace(uncounted, system=replace(uncounted.system, processes=[main]))
    assert rest_gets_quicker_by_ms(sampled, 60.0) == pytest.approx(10 + 5)


def test_a_gain_is_told_with_all_else_as_it_was_and_at_most() -> None:
    found = gain_of(advice(40.0, most_ms_per_step=50.0), rank())
    assert (found.gain_ms, found.most_ms, found.at_most) == (40.0, pytest.approx(65.0), True)
    assert told(found) == "about 1.7x, at most 2.9x faster"
    # Where it is not known how much of the wait goes, all of it may; a bound is never rounded down.
    assert told(gain_of(advice(40.0), rank())) == "1.7x to 4.0x faster"
    assert told(gain_of(advice(40.0, most_ms_per_step=50.3), rank())) == "about 1.7x, at most 2.9x faster"
    assert told(gain_of(advice(40.0, most_ms_per_step=51.0), rank())) == "about 1.7x, at most 3.0x faster"
    # A bound that is near says it all, and one that nobody meets is none.
    quiet = rank(process_pct=1.0, thread_cpu_ms=1.0, thread_run_delay_ms=0.0)
    assert told(gain_of(replace(advice(60.0), gain_ms_per_step=59.0), quiet)) == "at most 2.6x faster"
    crowded = rank(process_pct=1.0, thread_cpu_ms=1.0, thread_run_delay_ms=39.0)
    assert told(gain_of(advice(50.0), crowded)) == "2.0x to over 10x faster"
    # A range that begins near there says no more than its begin.
    assert told(gain_of(advice(85.0), replace(crowded, data_wait=unknown(DataWait)))) == (
        "about 6.7x faster, perhaps more"
    )


def test_what_makes_no_less_to_do_gains_no_more() -> None:
    assert told(gain_of(advice(50.0, "IO204"), rank())) == "at most 2.0x faster"  # more workers
    assert told(gain_of(advice(2.0, "IO502"), rank())) == "at most 2.0 ms a step"  # the loop's own writes


def test_the_mean_step_is_as_uncertain_as_its_steps_vary() -> None:
    found = gain_of(
        advice(60.0), rank(thread_cpu_ms=0.0, thread_run_delay_ms=0.0, mean_ci95_ms=[80.0, 125.0])
    )
    assert found.most_ms == pytest.approx(68.0)  # of 125 ms 85 go
    assert told(found) == "about 2.5x, at most 3.2x faster"


def test_what_varies_beside_the_wait_is_no_part_of_a_gain_of_it() -> None:
    varied = rank(thread_cpu_ms=0.0, thread_run_delay_ms=0.0, mean_ci95_ms=[80.0, 125.0])
    for share, most_ms in ((0.6, 100 - 100 * 40 / 115), (0.48, 60.0)):  # of 125 ms 75 or 60 are waits
        wait = replace(varied.data_wait, raw_wait_fraction_ci95=[0.4, share])
        found = gain_of(advice(60.0), replace(varied, data_wait=wait))
        assert found.most_ms == pytest.approx(most_ms)


def test_more_cpus_make_no_work_less() -> None:
    """A job that keeps one of two CPUs busy for 80 of 100 ms takes 40 on both."""
    system = replace(rank().system, cpu_pct_mean=80.0, cpus_online=2, cpus_usable=[0])
    bound = gain_of(advice(50.0, "IO302"), replace(rank(), system=system))
    other = gain_of(advice(50.0, "IO103"), replace(rank(), system=system))
    assert (bound.most_ms, other.most_ms) == (pytest.approx(60.0), pytest.approx(75.0))


def test_a_prediction_holds_what_the_rest_gains() -> None:
    setting = advice(40.0, "IO202", gain="prefetch_factor=4", gain_interval_ms=[30.0, 45.0])
    found = gain_of(replace(setting, most_ms_per_step=45.0), rank())
    assert (found.interval_ms, found.at_most) == ([30.0, pytest.approx(60.0)], False)
    assert told(found) == "1.7x faster (1.4 to 2.5)"
    unbounded = gain_of(setting, rank(thread_run_delay_ms=None))
    assert (unbounded.interval_ms, unbounded.most_ms) == ([30.0, 45.0], None)
    assert told(unbounded) == "about 1.7x faster, perhaps more"


def test_a_gain_that_may_be_none_is_told_by_its_bound_alone() -> None:
    """A model that skips padding gains nothing by batches of like lengths."""
    perhaps = FixGain(gain_ms=40.0, speedup=100 / 60, at_most=True, interval_ms=[0.0, 60.0], most_ms=60.0)
    assert told(perhaps) == "at most 2.5x faster"
    assert told(replace(perhaps, interval_ms=[10.0, 60.0])) == "about 1.7x, at most 2.5x faster"
    assert told(gain_of(advice(40.0, "IO512", gain_interval_ms=[0.0, 60.0]), rank())) == "at most 2.5x faster"


def test_nothing_bounds_what_a_thread_queues_less_behind_other_programs() -> None:
    item = unknown(Recommendation, id="loop-code", code="IO506", gain_ms_per_step=40.0, remedy="call it less")
    for taken, most_ms in ((0.7, None), (0.0, 40.0)):
        known = rank()
        host = unknown(HostUse, cpu_busy_fraction=0.99, cpu_saturated_fraction=0.9, others_cpu_fraction=taken)
        found = gain_of(item, replace(known, system=replace(known.system, host=host)))
        assert (found.gain_ms, found.most_ms) == (40.0, most_ms)


def test_a_small_gain_is_told_to_a_hundredth() -> None:
    """Nothing validates less often than never: of 18 s 1.3 are all that there is."""
    item = advice(7.2, "IO503", gain_interval_ms=[0.0, 7.2])
    assert told(gain_of(item, rank())) == "at most 1.08x faster"
    assert told(gain_of(replace(item, gain_ms_per_step=9.5, gain_interval_ms=[0.0, 9.5]), rank())) == (
        "at most 1.2x faster"
    )
    assert told(gain_of(advice(6.0), rank(thread_run_delay_ms=None))) == "about 1.06x faster, perhaps more"


def ways(*items: Recommendation) -> list[tuple[str, bool]]:
    """How the fixes behind the first one stand to it, and whether they gain little."""
    found = fixes_of(items, [replace(rank(), rank=None)], Trust(level="ok", reasons=[]), "transform")
    return [(fix.joins, fix.is_minor) for fix in found[1:]]


def test_a_fix_behind_the_first_ends_the_same_or_is_worth_its_place() -> None:
    first = advice(45.0, "IO103", id="transform-bound", rank=None)

    def other(gain_ms: float | None, code: str, id: str, **known: Any) -> Recommendation:
        return advice(gain_ms, code, id=id, rank=None, remedy=f"do {id}", **known)

    assert ways(first, other(40.0, "IO407", "repeated-work")) == [("or", False)]
    assert ways(first, other(20.0, "IO204", "too-few-workers")) == [("or", False)]
    assert ways(first, other(6.0, "IO206", "waiting-in-order")) == [("or", True)]
    # Decoding is another cause, as is what the loop itself does: both add up.
    assert ways(first, other(20.0, "IO102", "decode-bound")) == [("and", False)]
    assert ways(first, other(11.0, "IO102", "decode-bound")) == [("and", True)]
    assert ways(first, other(20.0, "IO102", "decode-bound", gain_interval_ms=[4.0, 30.0])) == [("and", True)]
    assert ways(first, other(20.0, "IO506", "code-of-the-loop")) == [("and", False)]
    # To take lists as arrays ends the line, too, that is slow for them.
    lists = other(20.0, "IO102", "decode-bound", evidence={"at_line_ms": 9.0})
    assert ways(first, lists) == [("or", False)]
    # Where nobody knows the gain, how much is wrong tells.
    assert ways(first, other(None, "IO511", "logging-in-the-loop")) == [("and", False)]
    assert ways(first, other(None, "IO511", "logging-in-the-loop", severity="medium")) == [("and", True)]
    # Next to a gain of 6 ms one of 3 is a half, but it is less than 5 % of a step.
    assert ways(replace(first, gain_ms_per_step=6.0), other(3.0, "IO102", "decode-bound")) == [("and", True)]


def test_what_of_the_loop_a_second_fix_ends_is_a_reason_too() -> None:
    first = advice(45.0, "IO103", id="transform-bound", rank=None)
    scores = advice(
        40.0, "IO506", id="code-of-the-loop", rank=None, remedy="score less", seen="the loop is in score"
    )
    for item, said in (
        (scores, "the loop is in score"),
        (replace(scores, gain_ms_per_step=4.0), None),
        (replace(scores, code="IO102", id="decode-bound"), None),
    ):
        fixes = fixes_of([first, item], [replace(rank(), rank=None)], Trust(level="ok", reasons=[]), None)
        assert second_cause([first, item], fixes) == said
