"""What Perfetto's own importer finds of torch.profiler's traces on a timeline: all of it."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import compute_of
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace
from iotrace.timeline.kineto import add_torch
from iotrace.timeline.model import ProcessTracks, Timeline
from tests.support.chrome_timeline import write_chrome
from tests.support.kineto import AUTOGRAD, MAIN, PID, annotation, event, kernel, operator, trace_of
from tests.support.perfetto import ERRORS, query
from tests.support.traces import SHARED, shared_trace

BASE_NS = 1_790_857_026 * 10**9


def written(path: Path, trace: KinetoTrace, pid: int) -> Path:
    span = trace.span_ns()
    assert span is not None
    timeline = Timeline(base_ns=span[0] - 1000)
    main = ProcessTracks("rank 0 · main", "")
    timeline.processes.append(main)
    add_torch(timeline, main, "rank 0", pid, compute_of([Activity(trace)]))
    write_chrome(timeline, path / "rank0.json.gz")
    return path / "rank0.json.gz"


def made_up() -> KinetoTrace:
    arrow: dict[str, Any] = {"id": 1, "cat": "fwdbwd", "name": "fwdbwd", "pid": PID}
    return trace_of(
        annotation("ProfilerStep#4", 0, 100),
        operator("aten::linear", 10, 40, Sequence_number=5),
        operator("aten::addmm", 11, 39),
        kernel(30, 60, launched=12),
        operator("AddmmBackward0", 50, 90, AUTOGRAD, Sequence_number=5, Fwd_thread_id=1),
        kernel(62, 80, launched=55, tid=AUTOGRAD, name="ncclDevKernel_AllReduce", stream=20),
        kernel(75, 95, launched=57, tid=AUTOGRAD),
        kernel(90, 99, launched=58, tid=AUTOGRAD),  # overlaps the one before without nesting
        event("gpu_user_annotation", "ProfilerStep#4", 30, 99, 7) | {"pid": 0},
        annotation("gloo:all_reduce", 60, 70, 33),
        {"ph": "s", "tid": MAIN, "ts": 10, **arrow},
        {"ph": "f", "tid": AUTOGRAD, "ts": 50, "bp": "e", **arrow},
        event("cuda_runtime", "cudaStreamIsCapturing", 1, 2, MAIN, correlation=777),
        {"ph": "f", "id": 777, "cat": "ac2g", "name": "ac2g", "pid": PID, "tid": MAIN, "ts": 1, "bp": "e"},
        base_ns=BASE_NS,
    )


def test_operators_streams_and_arrows(tmp_path: Path) -> None:
    path = written(tmp_path, made_up(), pid=MAIN)
    errors, slices, arrows = query(
        path,
        ERRORS,
        """select p.name, t.name, s.name, s.ts, s.dur from slice s join thread_track k on k.id = s.track_id
           join thread t using (utid) join process p using (upid) order by p.name, t.name, s.ts, s.depth""",
        """select o.name, i.name from flow join slice o on o.id = flow.slice_out
           join slice i on i.id = flow.slice_in order by 1, 2""",
    )
    assert errors == []
    path_starts, path_lengths = zip(*(row[3:] for row in slices if row[1] == "critical path"), strict=True)
    assert (path_starts[0], sum(path_lengths)) == (1_000, 100_000)  # the step, without a gap
    assert [at + of for at, of in zip(path_starts, path_lengths, strict=True)][:-1] == list(path_starts[1:])
    slices = [row for row in slices if row[1] != "critical path"]
    assert [row[:3] for row in slices] == [
        ["rank 0 · GPU 0", "idle", "idle · kernel wait · AddmmBackward0"],
        ["rank 0 · GPU 0", "modules", "forward"],
        ["rank 0 · GPU 0", "modules", "backward"],
        ["rank 0 · GPU 0", "stream 20 (communication)", "ncclDevKernel_AllReduce"],
        ["rank 0 · GPU 0", "stream 7", "gemm"],
        ["rank 0 · GPU 0", "stream 7", "gemm"],
        ["rank 0 · GPU 0", "stream 7 +1", "gemm"],
        ["rank 0 · GPU 0", "stream 7 · ranges", "ProfilerStep#4"],
        ["rank 0 · main", "torch", "ProfilerStep#4"],
        ["rank 0 · main", "torch", "cudaStreamIsCapturing"],
        ["rank 0 · main", "torch", "aten::linear"],
        ["rank 0 · main", "torch", "aten::addmm"],
        ["rank 0 · main", "torch", "cudaLaunchKernel"],
        ["rank 0 · main", "torch · communication · thread 33", "gloo:all_reduce"],
        ["rank 0 · main", f"torch · thread {AUTOGRAD}", "AddmmBackward0"],
        *[["rank 0 · main", f"torch · thread {AUTOGRAD}", "cudaLaunchKernel"]] * 3,
    ]
    assert [row[3:] for row in slices[:3]] == [[61_000, 2_000], [31_000, 30_000], [76_000, 24_000]]
    assert slices[13][3:] == [61_000, 10_000]
    # A call that launched nothing has no arrow.
    assert arrows == [
        ["aten::linear", "AddmmBackward0"],
        *[["cudaLaunchKernel", "gemm"]] * 3,
        ["cudaLaunchKernel", "ncclDevKernel_AllReduce"],
    ]


@pytest.mark.skipif(SHARED is None, reason="shared/traces lies beside the checkout on some machines alone")
@pytest.mark.parametrize(
    ("name", "pid"),
    [
        ("nccl_2ranks_rank0.json.gz", 2910249),
        pytest.param("resnet50_num_workers_4.pt.trace.json.gz", 5555, marks=pytest.mark.slow),
        pytest.param("recsys_8ranks_rank3.json.gz", 3113936, marks=pytest.mark.slow),
        pytest.param("mi300_owlv2.json.gz", 14646, marks=pytest.mark.slow),
    ],
)
def test_perfetto_imports_every_slice_and_arrow_of_real_traces(tmp_path: Path, name: str, pid: int) -> None:
    trace = read_kineto(shared_trace(name))
    path = written(tmp_path, trace, pid)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    put_in: Counter[str] = Counter()
    durations: Counter[str] = Counter()
    for one in events:
        if one["ph"] == "X":
            put_in[one["cat"]] += 1
            durations[one["cat"]] += round(one["dur"] * 1000)
    errors, slices, flows = query(
        path,
        ERRORS,
        "select category, count(*), sum(dur) from slice group by 1",
        "select count(*) from flow",
    )
    assert errors == []
    assert {category: count for category, count, _ in slices} == dict(put_in)
    assert {category: total for category, _, total in slices} == dict(durations)
    assert flows == [[sum(one["ph"] == "f" for one in events)]]
    kernels = [one for one in events if one["ph"] == "X" and one["cat"] == "kernel"]
    assert len(kernels) == int(Activity(trace).kinds.tolist().count(1))


def test_a_cpu_trace(tmp_path: Path) -> None:
    trace = read_kineto(Path(__file__).parent.parent / "data" / "gloo_rank1.json.gz")
    pid = next(pid for pid, tid in trace.threads if pid == tid and isinstance(pid, int))
    path = written(tmp_path, trace, pid)
    errors, threads, flows = query(
        path,
        ERRORS,
        """select t.name, count(*) from slice s join thread_track k on k.id = s.track_id
           join thread t using (utid) group by 1 order by 1""",
        "select count(*) from flow",
    )
    assert errors == []
    named = [re.sub(r" · thread \d+", "", name) for name, _ in threads]
    assert named == ["torch", "torch · communication", "torch · communication"]
    assert flows == [[24]]
