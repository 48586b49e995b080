"""A trace in the layout of Intel's unitrace; made up, as there is no such GPU here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iotrace.merge.plan import Options
from iotrace.merge.run import merge
from tests.support.perfetto import ERRORS, query

BEGIN_US = 1_795_226_512_198_900
ARROWS = """select a.name, b.name from flow
    join slice a on slice_out = a.id join slice b on slice_in = b.id"""
HOST, DEVICE, ENGINE = 900, 2**32 - 1, 2**32 - 2  # devices are numbered down from 2^32


def _event(phase: str, thread: tuple[int, int], name: str, category: str, after_us: int, **more: Any) -> str:
    pid, tid = thread
    event = {"ph": phase, "tid": tid, "pid": pid, "name": name, "cat": category, "ts": BEGIN_US + after_us}
    return json.dumps({**event, **more})


def _named(kind: str, name: str, **thread: int) -> str:
    return json.dumps({"ph": "M", "name": kind, **thread, "ts": BEGIN_US - 9000, "args": {"name": name}})


def test_unitrace_of_a_rank(tmp_path: Path) -> None:
    """One event a line, no tid in names of processes, and arrows of two directions that have one id and end
    in a step."""
    host, engine = (HOST, HOST), (DEVICE, ENGINE)
    to_device, to_host = "Flow_H2D_5_3", "Flow_D2H_5_3"
    lines = [
        _event("X", host, "zeCommandListAppendLaunchKernel", "cpu_op", 0, dur=9, id=0),
        _event("s", host, "dep", to_device, 0, id=5),
        _event("X", engine, "Convolution[SIMD16 {2; 1; 1}]", "gpu_op", 5, dur=40, args={"id": "5"}),
        _event("t", engine, "dep", to_device, 5, id=5),
        _event("s", engine, "dep", to_host, 5, id=5),
        _event("X", host, "zeEventHostSynchronize", "cpu_op", 20, dur=30, id=0),
        _event("t", host, "dep", to_host, 20, id=5),
        _event("R", host, "mark", "cpu_op", 25, id=0),
        _named("process_name", "RANK 3 HOST<x1001c0s2b0n0>", pid=HOST),
        _named("process_name", "RANK 3 DEVICE<x1001c0s2b0n0>0:9a:0:0 #1", pid=DEVICE),
        _named("thread_name", "Thread 900 L0 Engine<0,0>", pid=DEVICE, tid=ENGINE),
    ]
    trace = tmp_path / "python.900.json"
    trace.write_text('{ "traceEvents":[\n' + ",\n".join(lines) + "\n]\n}\n")
    for suffix in (".json", ".pftrace"):
        output = tmp_path / f"merged{suffix}"
        summary = merge([str(trace)], output, Options(process_tables=True))
        assert (summary.problems, summary.arrows_backwards, summary.sources[0].rank) == ([], 0, 3)
        counts = {kind: (count.read, count.written) for kind, count in summary.counts.items()}
        assert counts == {"slices": (3, 3), "instants": (1, 1), "flows": (4, 4)}
        slices, arrows, names, problems = query(
            output,
            "select name, dur from slice where dur > 0 order by ts",
            ARROWS,
            "select process.name, thread.name from thread join process using (upid) order by 1",
            ERRORS,
        )
        launch, kernel, synchronise = (name for name, _ in slices)
        assert [duration for _, duration in slices] == [9000, 40000, 30000]
        assert sorted(arrows) == sorted([[launch, kernel], [kernel, synchronise]])
        assert ["rank 3 · GPU 0:9a:0:0 #1 of x1001c0s2b0n0", "Thread 900 L0 Engine<0,0>"] in names
        assert ["rank 3 · process 900 of x1001c0s2b0n0", "main thread"] in names
        assert problems == []


def test_a_kernel_before_its_launch_is_counted(tmp_path: Path) -> None:
    host, engine = (HOST, HOST), (DEVICE, ENGINE)
    lines = [
        _event("X", host, "launch", "cpu_op", 5, dur=9, id=0),
        _event("s", host, "dep", "Flow_H2D_5_3", 5, id=5),
        _event("X", engine, "kernel", "gpu_op", 0, dur=40, args={"id": "5"}),
        _event("t", engine, "dep", "Flow_H2D_5_3", 0, id=5),
        _event("s", engine, "dep", "Flow_D2H_5_3", 0, id=5),
    ]
    trace = tmp_path / "python.900.json"
    trace.write_text('{ "traceEvents":[\n' + ",\n".join(lines) + "\n]\n}\n")
    assert merge([str(trace)], tmp_path / "merged.json").arrows_backwards == 1
