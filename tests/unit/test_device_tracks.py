"""Idle times, modules and launch queue of a device on its timeline; what leads to an idle time."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tools.benchmarks.big import write_session

from iotrace.analysis.device.accelerator import accelerator_of, waits_of
from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.critical_path import critical_path_of
from iotrace.analysis.device.gaps import Origin
from iotrace.analysis.device.stream_waits import Queues
from iotrace.analysis.rank import SessionAnalysis
from iotrace.cli import app
from iotrace.errors import UsageError
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session
from iotrace.timeline.build import build
from iotrace.timeline.device import derive_tracks
from iotrace.viewer.view import view_at, view_of_trace
from tests.support.kineto import MAIN, Event, annotation, data_wait, kernel, operator, trace_of
from tests.support.perfetto import query, track_paths
from tests.support.traces import SHARED, shared_trace

BASE_NS = 1_790_857_026 * 10**9


def activity() -> Activity:
    """Idle from 20 to 60 us for a data wait, from 70 to 72, which is the kernels' own; times in us."""
    return Activity(
        trace_of(
            data_wait(21, 50),
            annotation("nn.Module: encoder", 0, 19),
            annotation("nn.Module: encoder.mlp", 2, 19),
            operator("aten::mm", 2, 8),
            operator("aten::copy_", 52, 58),
            kernel(5, 10, launched=1, name="first"),
            kernel(10, 20, launched=3),
            kernel(60, 70, launched=53, name="copy"),
            kernel(72, 80, launched=56, name="last"),
            base_ns=BASE_NS,
        )
    )


def test_the_tracks_of_a_device() -> None:
    found = activity()
    of_all = np.zeros(len(found.trace.events), dtype=np.int64)
    (own,) = derive_tracks(found, waits_of(found), 30.0, of_all, "rank 1 · ").values()
    idle, path, modules = own.tracks
    shown = [(item.name, item.start_ns - BASE_NS, item.end_ns - BASE_NS) for item in idle.slices]
    # A short one is shown where it is among the ten longest.
    assert (idle.name, shown) == (
        "rank 1 · idle",
        [
            ("idle · data wait · aten::copy_", 20_000, 60_000),
            ("idle · kernel wait · aten::copy_", 70_000, 72_000),
        ],
    )
    shown = [(item.name, item.start_ns - BASE_NS, item.end_ns - BASE_NS) for item in path.slices]
    assert path.name == "rank 1 · critical path"
    assert shown[:4] == [
        ("aten::mm", 2_000, 3_000),
        ("cudaLaunchKernel", 3_000, 3_500),
        ("aten::mm", 3_500, 8_000),
        ("host", 8_000, 21_000),
    ]
    assert shown[4] == ("data wait", 21_000, 50_000)
    assert [(item.name, item.start_ns - BASE_NS, item.end_ns - BASE_NS) for item in modules.slices] == [
        ("forward", 5_000, 20_000),
        ("encoder", 5_000, 20_000),
        ("encoder.mlp", 10_000, 20_000),
    ]
    (queue,) = own.counters
    assert queue.name == "rank 1 · launch queue"
    assert [(time - BASE_NS, value) for time, value in queue.points] == [
        (1_000, 1), (3_000, 2), (5_000, 1), (10_000, 0),
        (53_000, 1), (56_000, 2), (60_000, 1), (72_000, 0),
    ]  # fmt: skip


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize("name", ["resnet50_num_workers_0.pt.trace", "nccl_2ranks_rank0"])
def test_the_critical_path_on_the_timeline_is_that_of_the_report(name: str) -> None:
    found = Activity(read_kineto(shared_trace(f"{name}.json.gz")))
    of_all = np.zeros(len(found.trace.events), dtype=np.int64)
    (own,) = derive_tracks(found, waits_of(found), 30.0, of_all).values()
    slices = next(track.slices for track in own.tracks if track.name == "critical path")
    told = critical_path_of([Queues(found)])
    assert told is not None
    drawn = dict.fromkeys(told.by_kind_us, 0.0)
    for item in slices:
        assert item.args is not None
        drawn[str(item.args["kind"])] += (item.end_ns - item.start_ns) / 1e3
    assert drawn == pytest.approx(told.by_kind_us)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(slices))


def test_counters_of_what_a_device_was_used_for() -> None:
    """Kernels fill multiprocessors, copies take bandwidth; where one does not tell there is no counter."""

    def counters(*events: Event | list[Event]) -> dict[str, list[tuple[int, float]]]:
        found = Activity(trace_of(*events, base_ns=BASE_NS))
        of_all = np.zeros(len(found.trace.events), dtype=np.int64)
        (own,) = derive_tracks(found, waits_of(found), 30.0, of_all).values()
        assert {(item.name, item.unit) for item in own.counters} <= {
            ("SM efficiency", "%"), ("memory bandwidth", "GB/s"), ("launch queue", "length"),
        }  # fmt: skip
        return {
            item.name: [((time - BASE_NS) // 1000, value) for time, value in item.points]
            for item in own.counters
        }

    def filled(start: float, end: float, blocks: float, stream: int = 7) -> list[Event]:
        made = kernel(start, end, stream=stream)
        made[0]["args"]["blocks per SM"] = blocks
        return made

    def copy(start: float, end: float, size: int | None, stream: int = 7) -> list[Event]:
        made = kernel(start, end, name="Memcpy HtoD", stream=stream, category="gpu_memcpy")
        made[0]["args"] |= {} if size is None else {"bytes": size}
        return made

    kernels = [filled(0, 100, 0.25), filled(50, 80, 0.5, 8), filled(60, 70, 3, 9)]
    copies = [copy(200, 300, 500_000), copy(250, 350, 1_000_000, 8)]
    assert counters(*kernels, *copies) == {
        "SM efficiency": [(0, 25), (50, 75), (60, 100), (70, 75), (80, 25), (100, 0)],
        "memory bandwidth": [(200, 5), (250, 15), (300, 10), (350, 0)],
    }
    assert counters(*kernels, kernel(400, 410), *copies, copy(500, 501, None)) == {}


@pytest.mark.skipif(SHARED is None, reason="needs the traces that others recorded")
def test_counters_of_a_real_trace_are_the_reports_figures() -> None:
    found = Activity(read_kineto(shared_trace("nccl_2ranks_rank0.json.gz")))
    of_all = np.zeros(len(found.trace.events), dtype=np.int64)
    (own,) = derive_tracks(found, waits_of(found), 30.0, of_all).values()
    device = accelerator_of([found])
    assert device is not None
    assert device.sm_efficiency_pct is not None
    in_all = {}
    for item in own.counters:
        times, values = (np.array(side) for side in zip(*item.points, strict=True))
        in_all[item.name] = float((values[:-1] * np.diff(times)).sum())
    filled = in_all["SM efficiency"] / device.span_us / 1000
    assert filled == pytest.approx(device.sm_efficiency_pct, rel=1e-4)
    copied = sum(one.bytes or 0 for one in device.memory_operations)
    assert in_all["memory bandwidth"] == pytest.approx(copied, rel=1e-5)


def test_an_idle_time_has_a_command() -> None:
    found = accelerator_of([activity()])
    assert found is not None
    path = str(activity().trace.path)
    assert re.fullmatch(r"iotrace open \S+trace\.json --at 0\.000040", found.gaps[0].command), path
    of_session = accelerator_of([activity()], origin=Origin("run 1", BASE_NS - 10**9))
    assert of_session is not None
    assert of_session.gaps[0].command == "iotrace open 'run 1' --at 1.000040"


def test_a_trace_is_looked_at_where_its_device_idles() -> None:
    found = activity()
    view = view_of_trace(found, 0.000040)
    assert view.selected_ns == (BASE_NS + 20_000, 40_000)
    assert view.shown_ns == (BASE_NS, BASE_NS + 80_000)
    assert view_of_trace(found, None).shown_ns is None
    busy = view_of_trace(found, 0.000015)
    assert (busy.selected_ns, busy.what) == (None, "at 0.000015 s")
    with pytest.raises(UsageError, match=r"lasts 0\.000080 s"):
        view_of_trace(found, 1.0)


def test_a_merge_adds_the_tracks(tmp_path: Path) -> None:
    """Each idle time of the report is a slice of that start and length; without the option there is none."""
    source = tmp_path / "trace.json"
    events = [
        *kernel(5, 10, launched=1),
        *kernel(60, 70, launched=53),
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
    ]
    source.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "baseTimeNanoseconds": BASE_NS}))
    runner = CliRunner()
    slices = {}
    for option in ("", "--device-tracks"):
        made = tmp_path / f"merged{option}.pftrace"
        result = runner.invoke(app, ["merge", str(source), "-o", str(made), *filter(None, [option])])
        assert result.exit_code == 0, result.output
        (slices[option],) = query(made, "select name, ts, dur from slice where category = 'idle'")
    assert slices[""] == []
    assert slices["--device-tracks"] == [["idle · host wait · gemm", BASE_NS + 10_000, 50_000]]


def of_rank(rank: int, at: Path) -> Path:
    """The trace of a rank whose process has a number that tells nothing of it."""
    pid, events = 4000 + 3 * rank % 8, [data_wait(21, 50), annotation("nn.Module: encoder", 0, 19)]
    for stream, start in ((7, 5), (20, 60)):
        events += kernel(start, start + 10, start - 4, stream=stream)
    found: list[Event] = []
    for one in events:
        host = {"pid": pid, "tid": pid} if one["tid"] == MAIN else {"pid": rank}
        found.append({**one, **host, "args": {**one["args"], "device": rank}})
    for process, label in ((pid, "CPU"), (rank, f"GPU {rank}")):
        for name, key, value in (("process_name", "name", "python"), ("process_labels", "labels", label)):
            found.append({"ph": "M", "name": name, "pid": process, "tid": 0, "args": {key: value}})
    path, job = at / f"{rank}.json", {"backend": "nccl", "rank": rank, "world_size": 8}
    document = {"traceEvents": found, "baseTimeNanoseconds": BASE_NS, "distributedInfo": job}
    path.write_text(json.dumps(document))
    return path


def test_eight_ranks_stand_in_order_each_beside_its_device(tmp_path: Path) -> None:
    order = (3, 1, 0, 4, 7, 2, 6, 5)
    given = [str(of_rank(rank, tmp_path)) for rank in order]
    for kind in ("native.pftrace", "chrome.json"):
        made = tmp_path / kind
        result = CliRunner().invoke(app, ["merge", *given, "-o", str(made), "--device-tracks"])
        assert result.exit_code == 0, result.output
    shown = [path.removeprefix("8 inputs / ") for path in track_paths(tmp_path / "native.pftrace")[1:]]
    expected = []
    for rank in range(8):
        host, device = f"rank {rank} / python ({4000 + 3 * rank % 8}) · CPU", f"rank {rank} / GPU {rank}"
        rows = (f"rank {rank} · idle", f"rank {rank} · critical path", "modules", "stream 7", "stream 20")
        expected += [f"rank {rank}", host, f"{host} / main thread", device]
        expected += [f"{device} / {row}" for row in rows]
    queues = [f"counters / rank {rank} · GPU {rank}" for rank in range(8)]
    assert shown == [*expected, "counters", *queues]
    counters, idle = query(
        tmp_path / "native.pftrace",
        "select name from track where name glob '*launch queue*' order by 1",
        "select count(*) from slice where category = 'idle' and dur = 45000",
    )
    assert [name for (name,) in counters] == [f"rank {rank} · launch queue length" for rank in range(8)]
    assert idle == [[8]]
    # Chrome's JSON orders processes and threads by numbers of their own.
    events = json.loads((tmp_path / "chrome.json").read_text())["traceEvents"]
    sorts = {one["pid"]: one["args"]["sort_index"] for one in events if one["name"] == "process_sort_index"}
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    in_order = [names[pid].partition(" (")[0] for pid in sorted(sorts, key=lambda pid: sorts[pid])]
    assert in_order == [f"rank {rank} · {each}" for rank in range(8) for each in ("python", f"GPU {rank}")]


def test_a_session_is_looked_at_where_its_device_idles(tmp_path: Path) -> None:
    """The command that a report prints selects the slice of the timeline."""
    write_session(tmp_path / "run", batches=20)
    analysis = SessionAnalysis(open_session(tmp_path / "run"))
    (rank,) = analysis.ranks
    begin_ns = rank.loop.steps[5].start_ns
    events = [kernel(5, 10, launched=1), kernel(60, 70, launched=53)]
    rank.__dict__["activities"] = [Activity(trace_of(*events, base_ns=begin_ns))]
    assert rank.compute.accelerator is not None
    (gap,) = rank.compute.accelerator.gaps
    assert gap.command == f"iotrace open {tmp_path / 'run'} --at {gap.at_s:.6f}"
    view = view_at(analysis, round(gap.at_s, 6))
    assert view.selected_ns == (begin_ns + 10_000, 50_000)
    device = next(each for each in build(rank, []).processes if "GPU" in each.name)
    assert [(item.start_ns, item.end_ns - item.start_ns) for item in device.tracks[0].slices] == [
        view.selected_ns
    ]
    assert view_at(analysis, gap.at_s + 0.02).selected_ns is None
    with pytest.raises(UsageError, match="nothing was recorded"):
        view_at(analysis, 1e6)
