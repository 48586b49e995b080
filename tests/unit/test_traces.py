"""Reports from bare traces, and what a rank's traces add to its session's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.analysis.device import collectives
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import compute_of, exposed_by_kernels
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.results import Report
from iotrace.analysis.traces import analyse_traces
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.sources.kineto.profiler_traces import read_windows
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import Event, annotation, data_wait, event, kernel, operator, step, trace_of
from tests.support.tables import steps_of, waits_of
from tests.support.traces import SHARED, shared_trace

DATA = Path(__file__).parent.parent / "data"
GPU = {"deviceProperties": [{"id": 0, "name": "A100"}]}


def delivery(wait_start_us: int, delivered_us: int) -> Delivery:
    return Delivery(
        loader=0,
        number=0,
        iterator=0,
        epoch=0,
        index=0,
        wait_start_ns=1000 * wait_start_us,
        delivered_ns=1000 * delivered_us,
    )


def test_a_trace_with_a_device_says_how_much_of_the_wait_it_hid() -> None:
    trace = trace_of(step(3, 0, 1000), data_wait(0, 400), kernel(-50, 100, -60), kernel(450, 900, 410), **GPU)
    report = analyse_traces([trace])
    (rank,) = report.ranks
    assert (rank.steps.count, rank.steps.mean_ms, [gpu.name for gpu in rank.system.gpus]) == (
        1,
        1.0,
        ["A100"],
    )
    wait = rank.data_wait
    assert (wait.raw_ms, wait.exposed_ms, wait.exposed_source) == (0.4, pytest.approx(0.3), "kernels")
    assert (wait.raw_wait_fraction, wait.stall_fraction) == (0.4, pytest.approx(0.3))
    assert rank.breakdown_ms is not None
    assert rank.breakdown_ms["kernel"] == pytest.approx(0.55)
    assert sum(rank.breakdown_ms.values()) == pytest.approx(1.0)
    assert rank.breakdown_raw_ms is not None
    assert rank.breakdown_raw_ms["dataloader"] == pytest.approx(0.4)
    assert rank.accelerator is not None
    assert rank.accelerator.idle_by_class_us["data_wait"] == pytest.approx(300)
    assert (report.imbalance, report.session.exit_code, rank.io, rank.host) == (None, None, None, None)


@pytest.mark.parametrize(
    ("around", "exposed_ms", "source"),
    [({}, 0.4, "cpu"), (GPU, None, None)],
    ids=["no device", "not recorded"],
)
def test_without_device_activity(
    around: dict[str, Any], exposed_ms: float | None, source: str | None
) -> None:
    trace = trace_of(step(3, 0, 1000), data_wait(0, 400), operator("aten::mm", 400, 900), **around)
    (rank,) = analyse_traces([trace]).ranks
    assert (rank.data_wait.exposed_ms, rank.data_wait.exposed_source) == (exposed_ms, source)
    assert rank.accelerator is None


def test_workers_are_advised_where_the_trace_shows_a_loader_without_any() -> None:
    alone = annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 400)
    (fix,) = analyse_traces([trace_of(step(3, 0, 1000), alone)]).verdict.fixes
    assert (fix.id, fix.gain_ms_per_step) == ("no-workers", None)  # of one step no gain is told
    for others in ([data_wait(0, 400)], [alone, data_wait(500, 600)], [operator("aten::mm", 0, 400)]):
        assert analyse_traces([trace_of(step(3, 0, 1000), *others)]).verdict.fixes == []


def test_why_a_bare_trace_waits_is_told_as_far_as_it_shows() -> None:
    found = analyse_traces([trace_of(step(3, 0, 1000), data_wait(0, 400))]).verdict
    assert found.why == "its loop waits 0.4 ms a step for data; no trace shows what the loader did then"


def test_what_a_trace_does_not_hold_is_unknown() -> None:
    (rank,) = analyse_traces([trace_of(step(3, 0, 1000), kernel(0, 900, -1))]).ranks
    # No wait was recorded: the loader may be another one than torch's.
    assert (rank.data_wait.raw_ms, rank.data_wait.verdict) == (None, None)
    report = analyse_traces([trace_of(event("overhead", "Instrumentation", 0, 9))])
    assert report.ranks[0].steps.mean_ms is None
    assert report.ranks[0].breakdown_ms is None
    assert [item.what for item in report.not_captured][1:] == ["steps of trace.json"]


def test_without_profiler_steps_the_whole_trace_is_one() -> None:
    report = analyse_traces(
        [trace_of(data_wait(0, 400), operator("aten::mm", 400, 1000), kernel(600, 2000, 500))]
    )
    (rank,) = report.ranks
    # It ends with what the device still does: the host only launches it.
    assert (rank.steps.count, rank.steps.mean_ms, rank.breakdown_steps) == (1, 2.0, 1)
    assert (rank.data_wait.raw_ms, rank.data_wait.exposed_ms) == (0.4, 0.4)
    assert rank.breakdown_ms is not None
    assert sum(rank.breakdown_ms.values()) == pytest.approx(2.0)
    assert report.verdict.kind == "moderately-input-bound"
    assert "no steps: the whole trace is one" in report.verdict.trust.reasons
    assert any("taken for one step" in item.why for item in report.not_captured)
    (alone,) = analyse_traces([trace_of(kernel(0, 900, -1))]).ranks
    assert (alone.steps.mean_ms, alone.data_wait.raw_ms) == (0.9, None)


def test_events_of_devices_that_are_not_known_are_named() -> None:
    (found,) = (
        item
        for item in analyse_traces(
            [trace_of(step(1, 0, 9), event("mtia_ccp_events", "a", 1, 2), event("overhead", "b", 1, 2))]
        ).not_captured
        if item.what == "events of trace.json that no figure counts"
    )
    assert found.why == "iotrace does not know their categories: mtia_ccp_events (1)"


def test_shapes_and_stacks_that_events_show_were_recorded() -> None:
    """Torch before 2.0 does not write in a trace's head what it recorded."""

    def said(*more: Event) -> str:
        launched = operator("aten::mm", 5, 9)
        launched["args"] |= {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
        events = [step(1, 0, 99), launched if more else operator("aten::mm", 5, 9), *kernel(20, 30, 6), *more]
        return " ".join(analyse_traces([trace_of(*events)]).verdict.trust.reasons)

    assert "no shapes or stacks recorded" in said()
    assert "no stacks recorded" in said(operator("aten::add", 40, 41))
    assert "recorded" not in said(event("python_function", "train.py(1): f", 0, 50))


def test_ranks_are_those_that_the_traces_name() -> None:
    traces = [read_kineto(DATA / f"gloo_rank{number}.json.gz") for number in (1, 0)]
    report = analyse_traces(traces)
    assert [(rank.rank, rank.world_size, rank.host) for rank in report.ranks] == [(0, 2, "vm"), (1, 2, "vm")]
    assert report.session.path == str(DATA)
    assert report.imbalance is not None
    assert report.imbalance.world_size == 2
    assert report.imbalance.stragglers[0].rank == 1
    assert [clock.kind for clock in report.clocks] == ["assumed", "assumed"]
    same = analyse_traces([traces[0], traces[0]])
    assert [rank.rank for rank in same.ranks] == [0, 1]


def test_the_sessions_waits_give_causes_to_the_idle_time_and_exposure_to_steps() -> None:
    trace = trace_of(kernel(0, 100, -1), kernel(400, 500, 390), kernel(800, 1000, 790))
    waits = [delivery(50, 350), delivery(550, 650)]
    explained = [Explained(one, {**dict.fromkeys(CAUSES, 0), "decode": one.wait_ns}) for one in waits]
    compute = compute_of([Activity(trace)], waits_of(explained))
    assert compute.accelerator is not None
    assert compute.accelerator.idle_by_class_us["data_wait"] == 250 + 100
    assert compute.accelerator.data_wait_by_cause_us is not None
    assert compute.accelerator.data_wait_by_cause_us["decode"] == pytest.approx(350)
    first = Step(delivery(-9, 0), 0, 350_000, (waits[0],))
    second = Step(waits[0], 350_000, 650_000, (waits[1],))
    beyond = Step(waits[1], 650_000, 2_000_000)
    exposed = exposed_by_kernels(compute, steps_of([first, second, beyond]))
    assert [sum(column) for column in zip(*exposed, strict=True)] == [350_000, 650_000]
    assert len(exposed) == 2


def test_two_traces_of_one_time_count_once(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"torch-{number}.json.gz").write_bytes((DATA / "gloo_rank0.json.gz").read_bytes())
    (tmp_path / "torch-2.json").write_text("nothing")
    found = read_windows(sorted(tmp_path.glob("torch-*")), near_ns=0)
    assert len(found.traces) == 1
    assert found.repeated == ["torch-1.json.gz"]
    (problem,) = found.problems
    assert "torch-2.json is no trace" in problem


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
def test_no_workers_and_four_of_the_same_training() -> None:
    found = {}
    for workers in (0, 4):
        trace = read_kineto(shared_trace(f"resnet50_num_workers_{workers}.pt.trace.json.gz"))
        (found[workers],) = analyse_traces([trace]).ranks
    assert found[0].data_wait.verdict == "highly input-bound"
    assert found[4].data_wait.verdict == "not input-bound"
    # Kernels hide a part of the wait; the breakdown shows the rest.
    wait, breakdown = found[0].data_wait, found[0].breakdown_ms
    assert wait.exposed_ms is not None
    assert breakdown is not None
    assert breakdown["dataloader"] <= wait.exposed_ms < (wait.raw_ms or 0)


def _ranks(*around: dict[str, Any], apart_s: int = 0) -> Report:
    """The report of two traces, `apart_s` from each other."""
    launched = [trace_of(step(1, 0, 1000), kernel(10, 900, 5), base_ns=0, **one) for one in around]
    dated = [
        replace(
            trace,
            path=Path(f"trace-{number}.json"),
            base_ns=0,
            events=replace(trace.events, start_ns=trace.events.start_ns + 10**18 + number * apart_s * 10**9),
        )
        for number, trace in enumerate(launched)
    ]
    return analyse_traces(dated)


def _of(rank: int, world_size: int) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": world_size}}


def test_a_trace_that_names_its_rank_keeps_it_beside_one_that_names_none() -> None:
    assert [(rank.rank, rank.world_size) for rank in _ranks(_of(3, 8), {}).ranks] == [(0, None), (3, 8)]
    assert [(rank.rank, rank.world_size) for rank in _ranks({}, _of(0, 2)).ranks] == [(0, 2), (1, None)]


@pytest.mark.parametrize(
    ("one", "other", "apart_s", "why"),
    [
        (_of(3, 8), _of(1, 2), 0, "trace-0.json is of a job of 8 ranks, trace-1.json of one of 2"),
        (_of(0, 2), _of(0, 2), 0, "trace-0.json and trace-1.json are both of rank 0"),
        (_of(0, 2), _of(1, 2), 7200, "trace-0.json and trace-1.json were recorded 2 h apart"),
        (_of(0, 2), {}, 0, "trace-1.json does not say which rank of which job it is"),
        (_of(0, 2), _of(0, 2), 60, "several windows of rank 0: give one of each rank"),
        (_of(0, 2), _of(1, 2), 60, None),
    ],
)
def test_traces_of_different_jobs_are_not_compared_as_ranks(
    one: dict[str, Any], other: dict[str, Any], apart_s: int, why: str | None
) -> None:
    found = _ranks(one, other, apart_s=apart_s)
    reasons = [item.why for item in found.not_captured if item.what == "the comparison of ranks"]
    assert (reasons, found.imbalance is None) == ([why] if why else [], why is not None)
    assert len(found.ranks) == 2
    assert (why in " ".join(found.verdict.trust.reasons)) if why else True


def test_a_job_of_a_thousand_ranks_is_judged_without_looking_at_all_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two windows each, over three hours: a pair of ranks is near where any two of their windows are."""
    looks = []
    found = collectives._gap_ns

    def counted(one: collectives.RankOfJob, other: collectives.RankOfJob) -> int | None:
        looks.append(one)
        return found(one, other)

    monkeypatch.setattr(collectives, "_gap_ns", counted)
    hour_ns = 3_600 * 10**9
    traces = [
        collectives.RankOfJob(f"{rank}-{window}", rank, 1_024, 9, window * hour_ns, window * hour_ns + 5)
        for rank in range(1_024)
        for window in (0, 1)
    ]
    assert collectives.why_not_one_job(traces) is None
    assert len(looks) == 1_024
    late = collectives.RankOfJob("late", 1_024, 1_024, 9, 5 * hour_ns, 5 * hour_ns + 5)
    assert collectives.why_not_one_job([*traces[::2], late]) == "0-0 and late were recorded 5 h apart"


def test_operators_of_torchs_profiler_before_kineto_are_known_by_their_process(tmp_path: Path) -> None:
    """Torch 1.7 wrote a bare list without categories, as public repositories still hold it."""
    rows = [("aten::conv2d", 0.5, 100.0, "CPU functions"), ("aten::conv2d", 10.0, 60.0, "CUDA functions")]
    events = [
        {"name": name, "ph": "X", "ts": at, "dur": lasted, "tid": 1, "pid": pid, "args": {}}
        for name, at, lasted, pid in rows
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(events[:1]))
    (rank,) = analyse_traces([read_kineto(path)]).ranks
    assert [(one.name, one.host_total_us) for one in rank.operators or ()] == [("aten::conv2d", 100.0)]
    assert rank.accelerator is None
    path.write_text(json.dumps(events))
    (rank,) = analyse_traces([read_kineto(path)]).ranks
    assert rank.accelerator is not None
    assert rank.accelerator.busy_us == 60.0
