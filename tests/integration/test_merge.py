"""Merging: the identity on durations, nesting and args; both kinds of output alike; clocks; real traces."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from iotrace import compiled
from iotrace.errors import IotraceError
from iotrace.merge.plan import Options
from iotrace.merge.run import merge
from iotrace.timeline.model import Counter as Counts, ProcessTracks, Timeline
from tests.support.chrome_timeline import write_chrome
from tests.support.mutate import DFTRACER, KINETO
from tests.support.perfetto import ERRORS, query, track_paths
from tests.support.runs import Run

BASE_US = 1_795_000_000_000_000
# Traces that others recorded, where a checkout has them beside it.
REAL = Path(os.environ.get("IOTRACE_REAL_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
ONE = Options(processes=1)


def _slices(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_bytes())["traceEvents"] if event["ph"] == "X"]


def _write(path: Path, events: list[dict[str, Any]], **beside: Any) -> str:
    path.write_text(json.dumps({"traceEvents": events, **beside}))
    return str(path)


def _slice(start_us: float, duration_us: float, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 77, "tid": 77, "ts": start_us, "dur": duration_us, "name": name, **more}


files = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 30), st.integers(-(2**60), 2**60)),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(files)
def test_merging_changes_no_duration_no_nesting_and_no_argument(
    tmp_path_factory: pytest.TempPathFactory, found: list[list[tuple[int, int, int, int]]]
) -> None:
    directory = tmp_path_factory.mktemp("merge")
    inputs = []
    for number, rows in enumerate(found):
        events = [
            _slice(BASE_US + start, length, f"{number}:{place}", args={"v": value, "l": [place, {"k": None}]})
            | {"tid": tid}
            for place, (tid, start, length, value) in enumerate(rows)
        ]
        inputs.append(_write(directory / f"{number}.json", events))
    output = directory / "out.json"
    merge(inputs, output, ONE)
    document = json.loads(output.read_bytes())
    base_us = document["baseTimeNanoseconds"] // 1000
    merged = {event["name"]: event for event in document["traceEvents"] if event["ph"] == "X"}
    assert len(merged) == sum(map(len, found))
    for number, rows in enumerate(found):
        for place, (_, start, length, value) in enumerate(rows):
            event = merged[f"{number}:{place}"]
            assert event["args"] == {"v": value, "l": [place, {"k": None}]}
            assert round(event["ts"] * 1000) == (BASE_US + start - base_us) * 1000
            assert event["dur"] == length
    rows_of: dict[tuple[int, int], list[tuple[float, float]]] = {}
    origin: dict[tuple[int, int], set[tuple[str, int]]] = {}
    for name, event in merged.items():
        place = (event["pid"], event["tid"])
        rows_of.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
        number, index = map(int, name.split(":"))
        origin.setdefault(place, set()).add((str(number), found[number][index][0]))
    assert all(len(places) == 1 for places in origin.values())  # no two threads became one
    for spans in rows_of.values():
        for a, b in spans:
            assert all(b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d) for c, d in spans)


def _imported(path: Path) -> dict[str, Any]:
    """What Perfetto's importer makes of a file, in figures that the two kinds must agree in."""
    errors, slices, nesting, flows, counters, arguments = query(
        path,
        ERRORS,
        "select count(*), sum(dur) from slice",
        # Instants of a whole trace stand on one row in JSON, on a row of their rank else.
        "select depth, count(*), sum(dur) from slice where dur > 0 group by depth order by depth",
        "select count(*) from flow",
        "select count(*), total(value) from counter",
        "select count(*) from args where key like 'args.%' or key like 'debug.%'",
    )
    assert errors == []
    return {
        "slices": slices,
        "nesting": nesting,
        "flows": flows,
        "counters": counters,
        "arguments": arguments,
    }


def _both(tmp_path: Path, inputs: list[str], options: Options | None = None) -> tuple[Any, dict[str, Any]]:
    """Merge to JSON, to a native tree of tracks and to native processes, which must hold the same."""
    outputs = [tmp_path / "merged" / f"out{kind}" for kind in (".json", ".pftrace", "-tables.pftrace")]
    outputs[0].parent.mkdir()
    options = options or Options()
    summaries = [
        merge(inputs, output, replace(options, process_tables="tables" in output.name)) for output in outputs
    ]
    imported = [_imported(output) for output in outputs]
    # Floats are summed in another order where equal stamps are.
    counters, *values = (kind.pop("counters")[0] for kind in imported)
    assert [pytest.approx(each, rel=1e-9) for each in values] == [counters, counters]
    # Perfetto itself adds an argument to async slices of processes.
    arguments = [kind.pop("arguments")[0][0] for kind in imported]
    assert arguments[0] == arguments[1] <= arguments[2]
    assert imported[0] == imported[1] == imported[2]
    return summaries[0], {**imported[0], "counters": [counters], "arguments": [arguments[:1]]}


def test_both_kinds_hold_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(KINETO)
    (tmp_path / "b.pfw").write_bytes(DFTRACER)
    summary, imported = _both(tmp_path, [str(tmp_path / "*.*")])
    # The slices, the instant; the counter's one value.
    assert imported["slices"][0][0] == summary.counts["slices"].read + summary.counts["instants"].read == 6
    assert imported["flows"] == [[1]]
    assert imported["counters"] == [[1, 12]]


def test_a_trace_and_the_log_of_its_process_are_one_process(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(KINETO)
    (tmp_path / "b.pfw").write_bytes(DFTRACER)
    summary = merge([str(tmp_path / "*.*")], tmp_path / "out.json", ONE)
    assert [source.clock for source in summary.sources] == ["exact", "exact"]
    pids = {event["name"]: event["pid"] for event in _slices(tmp_path / "out.json")}
    assert pids["pread64"] == pids["aten::add"]
    read = next(event for event in _slices(tmp_path / "out.json") if event["name"] == "pread64")
    assert read["args"]["file"] == "data/d.h5"


def test_arrows_of_several_files_do_not_grow_into_each_other(tmp_path: Path) -> None:
    for number in range(3):
        text = KINETO.replace(b'"rank": 1', b'"rank": %d' % number).replace(b'"bp": "e"', b'"v": 1')
        (tmp_path / f"{number}.json").write_bytes(text)
    summary, imported = _both(tmp_path, [str(tmp_path / "*.*")])
    assert imported["flows"] == [[3]]
    assert [source.rank for source in summary.sources] == [0, 1, 2]
    within = query(
        tmp_path / "merged" / "out.json",
        "select count(*) from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in "
        "where a.name = 'cudaLaunchKernel' and b.name = 'gemm<float, 4>'",
    )
    assert within == [[[3]]]


def test_order_and_titles(tmp_path: Path) -> None:
    for number in (1, 0):
        (tmp_path / f"{number}.json").write_bytes(KINETO.replace(b'"rank": 1', b'"rank": %d' % number))
    merge([str(tmp_path / "1.json"), str(tmp_path / "0.json")], tmp_path / "out.pftrace", ONE)
    assert track_paths(tmp_path / "out.pftrace") == [
        "2 inputs",
        "2 inputs / rank 0",
        "2 inputs / rank 0 / process (4242)",
        "2 inputs / rank 0 / process (4242) / main thread",
        "2 inputs / rank 0 / GPU 0",
        "2 inputs / rank 0 / GPU 0 / stream 7",
        "2 inputs / rank 0 / profiler's marks",
        "2 inputs / rank 1",
        "2 inputs / rank 1 / process (4242)",
        "2 inputs / rank 1 / process (4242) / main thread",
        "2 inputs / rank 1 / GPU 0",
        "2 inputs / rank 1 / GPU 0 / stream 7",
        "2 inputs / rank 1 / profiler's marks",
        "2 inputs / counters",
        "2 inputs / counters / rank 0 · process (4242)",
        "2 inputs / counters / rank 1 · process (4242)",
    ]


def test_a_slice_that_overlaps_moves_with_its_arrow(tmp_path: Path) -> None:
    events = [
        _slice(BASE_US, 10, "first"),
        _slice(BASE_US + 5, 10, "second"),
        {"ph": "s", "id": 1, "cat": "c", "name": "n", "pid": 77, "tid": 77, "ts": BASE_US + 5},
        _slice(BASE_US + 20, 1, "target"),
        {"ph": "f", "id": 1, "cat": "c", "name": "n", "pid": 77, "tid": 77, "ts": BASE_US + 20},
    ]
    summary, _ = _both(tmp_path, [_write(tmp_path / "a.json", events)])
    assert summary.lanes_moved == 1
    for kind in ("out.json", "out.pftrace"):
        (ends,) = query(
            tmp_path / "merged" / kind,
            "select a.name, b.name from flow "
            "join slice a on a.id = slice_out join slice b on b.id = slice_in",
        )
        assert ends == [["second", "target"]]


def test_begin_and_end_events_async_and_marks_in_both_kinds(tmp_path: Path) -> None:
    common = {"pid": 77, "tid": 77, "cat": "c"}
    events = [
        {"ph": "B", "ts": BASE_US, "name": "outer", **common},
        {"ph": "B", "ts": BASE_US + 1, "name": "inner", **common},
        {"ph": "E", "ts": BASE_US + 2, **common},
        {"ph": "E", "ts": BASE_US + 3, **common},
        {"ph": "b", "ts": BASE_US, "name": "async", "id": 5, **common},
        {"ph": "e", "ts": BASE_US + 9, "name": "async", "id": 5, **common},
        {"ph": "i", "s": "t", "ts": BASE_US, "name": "mark", **common},
        {"ph": "i", "s": "g", "ts": BASE_US, "name": "global", **common},
        _slice(BASE_US + 1, 8, "across the end of the outer one"),
    ]
    summary, imported = _both(tmp_path, [_write(tmp_path / "a.json", events)])
    assert imported["slices"][0][0] == 6
    assert {kind: count.written for kind, count in summary.counts.items()} == {
        "slices": 3,
        "slice ends": 2,
        "instants": 2,
        "async": 2,
    }


def test_devices_and_instants_of_several_ranks_say_whose_they_are(tmp_path: Path) -> None:
    """Of eight devices the eighth has a stream 7, its default one; profilers' instants are of one rank."""
    for rank in (7, 0):
        names = [
            {"ph": "M", "name": "process_labels", "pid": rank, "tid": 0, "args": {"labels": f"GPU {rank}"}},
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": 7, "args": {"name": "stream 7"}},
        ]
        marks = [
            {"ph": "i", "s": "g", "ts": BASE_US, "name": "Iteration Start", "pid": "Traces", "tid": "Trace"},
            {"ph": "i", "s": "g", "ts": BASE_US + 9, "name": "Record Window End", "pid": "", "tid": ""},
        ]
        kernel = {**_slice(BASE_US + rank, 5, "kernel"), "pid": rank, "tid": 7}
        document = {
            "distributedInfo": {"rank": rank, "world_size": 8},
            "traceEvents": [*names, *marks, kernel],
        }
        (tmp_path / f"worker{rank}.json").write_text(json.dumps(document))
    _both(tmp_path, [str(tmp_path / "worker*.json")])
    out = tmp_path / "merged" / "out.pftrace"
    assert track_paths(out) == [
        f"2 inputs{below}"
        for rank in (0, 7)
        for below in (
            "",
            f" / rank {rank}",
            f" / rank {rank} / GPU {rank}",
            f" / rank {rank} / GPU {rank} / stream 7",
            f" / rank {rank} / profiler's marks",
        )
        if below or not rank
    ]
    (marks,) = query(out, "select distinct t.name from slice s join track t on t.id = track_id where dur = 0")
    assert marks == [["profiler's marks"]]


FLOWS = "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"


def _arrow(phase: str, at_us: float, tid: int = 77, **more: Any) -> dict[str, Any]:
    return {
        "ph": phase,
        "id": 1,
        "cat": "c",
        "name": "n",
        "pid": 77,
        "tid": tid,
        "ts": BASE_US + at_us,
        **more,
    }


def test_arrows_between_begin_and_end_events_and_what_their_ends_hold(tmp_path: Path) -> None:
    def begin(at_us: float, name: str, tid: int) -> dict[str, Any]:
        return {"ph": "B", "pid": 77, "tid": tid, "ts": BASE_US + at_us, "name": name}

    def end(at_us: float, tid: int, **more: Any) -> dict[str, Any]:
        return {"ph": "E", "pid": 77, "tid": tid, "ts": BASE_US + at_us, **more}

    events = [
        begin(0, "outer", 77),
        begin(10, "inner", 77),
        _arrow("s", 15),
        end(20, 77, args={"result": "ok"}),
        _slice(BASE_US + 40, 5, "of the same thread"),
        end(100, 77),
        begin(30, "target", 78),
        _arrow("f", 35, 78, bp="e"),
        end(60, 78),
        # Ends with names end theirs, in whatever order.
        begin(200, "A", 79),
        begin(210, "B", 79),
        end(220, 79, name="A"),
        end(250, 79, name="B"),
    ]
    summary, imported = _both(tmp_path, [_write(tmp_path / "a.json", events)])
    assert summary.problems == []
    assert imported["arguments"] == [[1]]
    durations = "select name, dur from slice where name in ('A', 'B') order by name"
    for kind in ("out.json", "out.pftrace"):
        found = query(tmp_path / "merged" / kind, FLOWS, durations)
        assert found == [[["inner", "target"]], [["A", 20_000], ["B", 10_000]]]


def test_an_arrow_that_means_the_slice_that_begins_next(tmp_path: Path) -> None:
    """Chrome's meaning of an end without `bp`; where a slice begins with it, that one, as in Kineto."""
    events = [_slice(BASE_US, 10, "A")]
    bound = {1: ({}, "at it"), 2: ({}, "next"), 3: ({"bp": "e"}, "loop"), 4: ({}, "loop"), 5: ({}, "begun")}
    for number, (more, _) in bound.items():
        tid = 100 + number
        at_us = 20 if number == 1 else 15
        events += [_arrow("s", 5), _arrow("f", at_us, tid, **more, args={"x": {"v": 1, "bp": "e"}})]
        if number != 5:
            events.append(_slice(BASE_US, 100, "loop") | {"tid": tid})
        else:
            events.append({"ph": "B", "pid": 77, "tid": tid, "ts": BASE_US + 16, "name": "begun"})
            events.append({"ph": "E", "pid": 77, "tid": tid, "ts": BASE_US + 18})
        if number != 4:
            events.append(_slice(BASE_US + 20, 10, "at it" if number == 1 else "next") | {"tid": tid})
        for event in events:
            if event["ph"] in "sf" and event["id"] == 1:
                event["id"] = 10 + number
    summary, _ = _both(tmp_path, [_write(tmp_path / "a.json", events)])
    assert summary.problems == []
    for kind in ("out.json", "out.pftrace"):
        (found,) = query(tmp_path / "merged" / kind, FLOWS)
        assert sorted(found) == sorted(["A", name] for _, name in bound.values())


def test_what_joins_by_other_ids_and_counters_in_both_kinds(tmp_path: Path) -> None:
    local, shared = {"id2": {"local": "0x1"}}, {"id2": {"global": 9}}

    def wait(phase: str, at_us: float, pid: int, name: str, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "cat": "net", "name": name, "pid": pid, "tid": 5, "ts": BASE_US + at_us, **more}

    def counter(name: str, value: Any, **more: Any) -> dict[str, Any]:
        return {"ph": "C", "name": name, "pid": 81, "ts": BASE_US, "args": {"v": value}, **more}

    events = [
        {"ph": "M", "name": "process_name", "pid": 80, "args": {"name": "only async"}},
        {"ph": "M", "name": "process_name", "pid": 82, "args": {"name": "nothing"}},
        wait("b", 0, 80, "request", **local),
        wait("n", 5, 80, "first byte", **local),
        wait("b", 10, 81, "of another process", **local),
        wait("e", 30, 81, "of another process", **local),
        wait("e", 50, 80, "request", **local, args={"status": 200}),
        wait("b", 0, 80, "shared", **shared),
        wait("e", 70, 81, "shared", **shared),
        _slice(BASE_US, 10, "A", bind_id="0x5", flow_out=True),
        _slice(BASE_US + 20, 10, "through", bind_id=5, flow_in=True, flow_out=True),
        {"ph": "B", "pid": 77, "tid": 79, "ts": BASE_US + 40, "name": "B", "bind_id": "0x5", "flow_in": True},
        {"ph": "E", "pid": 77, "tid": 79, "ts": BASE_US + 50},
        *(counter("gauge", 2 + number, id=f"0x{number}") for number in range(2)),
        *(counter(value, value) for value in ("17", " 1e3", "0x10", "2 GB", "nan")),
    ]
    statements = (
        "select s.name, dur, depth, coalesce(p.name, '') from slice s left join process_track t "
        "on t.id = s.track_id left join process p using (upid) where s.category = 'net' order by s.name",
        "select t.name, value from counter c join counter_track t on t.id = c.track_id "
        "where value is not null order by t.name",
        FLOWS,
        "select name from process where name is not null order by name",
    )
    tables = replace(ONE, process_tables=True)
    found = []
    for kind, options in (("json", ONE), ("tables.pftrace", tables), ("pftrace", ONE)):
        merge([_write(tmp_path / "a.json", events)], tmp_path / f"out.{kind}", options)
        found.append(query(tmp_path / f"out.{kind}", *statements))
    assert found[0] == found[1]
    slices, counters, flows, processes = found[0]
    assert found[2] == [[[*row[:3], ""] for row in slices], counters, flows, []]
    assert slices == [
        ["first byte", 0, 1, "only async (80)"],
        ["of another process", 20_000, 0, "process (81)"],
        ["request", 50_000, 0, "only async (80)"],
        ["shared", 70_000, 0, ""],
    ]
    assert counters == [[" 1e3 v", 1000], ["0x10 v", 16], ["17 v", 17]] + [
        [f"gauge id: 0x{number} v", 2 + number] for number in range(2)
    ]
    assert flows == [["A", "through"], ["through", "B"]]
    assert [name for (name,) in processes] == ["only async (80)", "process (77)", "process (81)"]


def _two_hosts(tmp_path: Path, offset_us: float, shortest_us: float = 50) -> list[str]:
    """Two ranks whose clocks differ by `offset_us`, with collectives that end together to within 0.2 us."""
    inputs = []
    for rank in range(2):
        events = []
        for number in range(40):
            end = BASE_US + 1000 * number + (offset_us + 0.1 * (number % 3) if rank else 0)
            lasted = (shortest_us if number == 21 else 50) + 10 * rank
            kernel = _slice(end - lasted, lasted, "ncclDevKernel_AllReduce(x)", cat="kernel")
            events.append(kernel | {"pid": 100 + rank, "args": {"Collective name": "allreduce"}})
        inputs.append(
            _write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
        )
    return inputs


def test_the_offset_of_two_hosts_is_told_from_their_collectives(tmp_path: Path) -> None:
    summary = merge(_two_hosts(tmp_path, 7_000_000.0), tmp_path / "out.json", ONE)
    shifted = summary.sources[1]
    assert [source.clock for source in summary.sources] == ["inferred", "inferred"]
    assert abs(shifted.clock_shift_ns + 7_000_000_000) <= 200
    assert shifted.clock_bound_ns is not None
    assert shifted.clock_bound_ns < 500
    stored = json.loads((tmp_path / "out.json").read_bytes())["iotrace_merge"]["sources"][1]
    assert stored["clock_bound_ns"] == shifted.clock_bound_ns
    merge(_two_hosts(tmp_path, 7_000_000.0), tmp_path / "out.json", Options(strict_clocks=True))
    inputs = _two_hosts(tmp_path, 7_000_000.0, shortest_us=0.05)
    with pytest.raises(IotraceError, match=r"too coarse .*: allreduce #21 ends in 1.json .* in 0.json"):
        merge(inputs, tmp_path / "strict.json", Options(strict_clocks=True))
    assert not (tmp_path / "strict.json").exists()


def test_traces_of_different_jobs_are_refused(tmp_path: Path) -> None:
    """Nine days apart, and of other sizes: matched by their order, one was shifted onto the other."""

    def trace(name: str, rank: int, world_size: int, apart_us: float = 0.0) -> str:
        events = [
            _slice(BASE_US + apart_us + 100 * each, 50, "ncclDevKernel_AllReduce(x)", cat="kernel")
            | {"args": {"Collective name": "allreduce"}}
            for each in range(4)
        ]
        info = {"rank": rank, "world_size": world_size}
        return _write(tmp_path / name, events, schemaVersion=1, distributedInfo=info)

    first = trace("first.json", 0, 2)
    for other, why in (
        (trace("size.json", 3, 8), "of a job of 2 ranks, size.json of one of 8"),
        (trace("rank.json", 0, 2, 10.0), "are both of rank 0"),
        (trace("late.json", 1, 2, 9 * 86_400e6), "were recorded 9 d apart"),
    ):
        with pytest.raises(IotraceError, match=why):
            merge([first, other], tmp_path / "out.json", ONE)
        merge([first, other], tmp_path / "out.json", Options(processes=1, align_start=True))
    assert merge([first, trace("fits.json", 1, 2)], tmp_path / "out.json", ONE).sources[1].clock == "inferred"


def test_clocks_that_nothing_relates(tmp_path: Path) -> None:
    known = _write(tmp_path / "known.json", [_slice(BASE_US, 5)])
    other = _write(tmp_path / "other.json", [_slice(BASE_US, 6)])
    boot = _write(tmp_path / "boot.json", [_slice(1234.5, 5)])
    with pytest.raises(IotraceError, match="nothing relates it"):
        merge([known, boot], tmp_path / "out.json", ONE)
    with pytest.raises(IotraceError, match="assumed"):
        merge([known, other], tmp_path / "out.json", Options(strict_clocks=True))
    summary = merge([known, boot], tmp_path / "out.json", Options(processes=1, align_start=True))
    assert [source.clock for source in summary.sources] == ["assumed", "none"]
    assert len({event["ts"] for event in _slices(tmp_path / "out.json")}) == 1
    assert merge([boot], tmp_path / "out.json", ONE).sources[0].clock == "none"


def test_selections(tmp_path: Path) -> None:
    events = [
        _slice(BASE_US + 100 * step, 100, f"ProfilerStep#{step}", cat="user_annotation") for step in range(9)
    ]
    events += [_slice(BASE_US + 100 * step + 10, 50, f"op{step}", cat="cpu_op,op") for step in range(9)]
    source = _write(tmp_path / "a.json", events, distributedInfo={"rank": 3})

    def names(options: Options) -> set[str]:
        summary = merge([source], tmp_path / "out.json", options)
        count = summary.counts["slices"]
        assert count.read == 18
        assert count.written == len(_slices(tmp_path / "out.json"))
        return {event["name"] for event in _slices(tmp_path / "out.json")}

    assert names(Options(steps=(3, 5))) == {"ProfilerStep#3", "ProfilerStep#4", "op3", "op4"}
    assert names(Options(seconds=(0.0001, 0.0002))) == {"ProfilerStep#1", "op1"}
    assert names(Options(dropped=frozenset({"cpu_op"}))) == {f"ProfilerStep#{step}" for step in range(9)}
    summary = merge([source], tmp_path / "out.json", Options(dropped=frozenset({"kernels", "cpu_op"})))
    assert summary.notes == [
        "no event is of the category kernels; categories of the inputs: cpu_op, op, user_annotation"
    ]
    assert len(names(Options(ranks=frozenset({3})))) == 18
    with pytest.raises(IotraceError, match="no input is of rank 4"):
        names(Options(ranks=frozenset({4})))


def test_arrows_of_what_was_left_out_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(KINETO)
    summary, imported = _both(tmp_path, [str(tmp_path / "a.json")], Options(dropped=frozenset({"kernel"})))
    assert summary.counts["flows"].written == 1
    assert imported["flows"] == [[0]]


def test_a_file_for_every_rank(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.json").write_bytes(KINETO.replace(b'"rank": 1', b'"rank": %d' % number))
    summary = merge([str(tmp_path)], tmp_path / "out.pftrace.gz", Options(per_rank=True))
    assert [Path(path).name for path in summary.outputs] == ["out-rank0.pftrace.gz", "out-rank1.pftrace.gz"]
    for path in summary.outputs:
        plain = Path(path).with_suffix("")
        plain.write_bytes(gzip.decompress(Path(path).read_bytes()))
        assert _imported(plain)["flows"] == [[1]]


def test_several_processes_and_one_write_the_same(tmp_path: Path) -> None:
    events = [
        _slice(BASE_US + 10 * place, 9, f"op {place}", args={"text": "x" * 40}) for place in range(8000)
    ]
    inputs = [
        _write(tmp_path / f"{number}.json", events, distributedInfo={"rank": number}) for number in range(2)
    ]
    for kind in ("json", "pftrace"):
        merge(inputs, tmp_path / f"one.{kind}", ONE)
        merge(inputs, tmp_path / f"two.{kind}", Options(processes=2))
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_a_session(unet_run: Run, tmp_path: Path) -> None:
    summary, imported = _both(tmp_path, [str(unet_run.session)])
    assert [source.clock for source in summary.sources] == ["exact", "exact"]
    # The window of torch.profiler is merged whole, not again as the session's own timeline shows it.
    same = "select name, count(*), sum(dur) from slice where name glob 'ProfilerStep*' or category in "
    same += (
        "('step', 'data wait', 'batch', 'ready', 'dataset', 'read path', 'POSIX') group by name order by name"
    )
    counters = "select t.name, count(*), max(value) from counter c join counter_track t "
    counters += "on t.id = c.track_id group by t.name order by t.name"
    direct, values = query(unet_run.session / "out" / "timeline.pftrace", same, counters)
    for output in (tmp_path / "merged").glob("out.*"):
        merged, merged_values = query(output, same, counters)
        assert merged == direct
        assert [row[:2] for row in merged_values] == [row[:2] for row in values]
        # Perfetto reads decimals to the last bit but one.
        assert [row[2] for row in merged_values] == pytest.approx([row[2] for row in values], rel=1e-12)
    assert {"RSS bytes", "CPU %"} <= {name for name, _, _ in values}
    assert any(name.startswith("ProfilerStep") for name, *_ in merged)
    assert imported["slices"][0][0] > sum(count for _, count, _ in merged)


@pytest.mark.parametrize("name", ["out.pftrace", "out.pftrace.gz"])
def test_without_the_library_native_output_is_json_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    events = [{"ph": "X", "pid": 7, "tid": 7, "ts": BASE_US, "dur": 5, "name": "only"}]
    (tmp_path / "in.json").write_text(json.dumps({"traceEvents": events}))
    merge([str(tmp_path / "in.json")], tmp_path / "with.json", ONE)
    monkeypatch.setattr(compiled, "library", lambda: None)
    summary = merge([str(tmp_path / "in.json")], tmp_path / name, ONE)
    data = (tmp_path / name).read_bytes()
    assert json.loads(gzip.decompress(data) if name.endswith(".gz") else data) == json.loads(
        (tmp_path / "with.json").read_bytes()
    )
    assert [note for note in summary.notes if "library" in note] == [
        "the compiled library of iotrace is missing: the output is Chrome JSON under the name "
        f"{name.removeprefix('out')}, which Perfetto opens as well; with a C compiler, install iotrace again"
    ]
    (found,) = query(tmp_path / name, "select name from slice")
    assert found == [["only"]]
    merge([str(tmp_path / name)], tmp_path / "again.json", ONE)


def test_small_values_of_counters_are_read_as_they_are(tmp_path: Path) -> None:
    points = [(place, 0.00019336442665323286 * place) for place in range(1, 9)]
    timeline = Timeline(base_ns=0, processes=[ProcessTracks("p", "", counters=[Counts("c", points, "%")])])
    write_chrome(timeline, tmp_path / "out.json")
    (found,) = query(tmp_path / "out.json", "select value from counter order by ts")
    assert [value for (value,) in found] == pytest.approx([value for _, value in points], abs=1e-6)


def test_two_sessions_of_a_rank_are_told_apart_in_both_kinds(unet_run: Run, tmp_path: Path) -> None:
    sessions = [tmp_path / "before", tmp_path / "after"]
    for session in sessions:
        shutil.copytree(unet_run.session, session)
    _, imported = _both(tmp_path, [str(session) for session in sessions], ONE)
    assert imported["flows"][0][0] > 0
    assert imported["counters"][0][0] > 0
    groups = {tuple(path.split(" / ")[1:3]) for path in track_paths(tmp_path / "merged" / "out.pftrace")}
    assert {("before", "rank 0"), ("after", "rank 0")} <= groups


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(KINETO)
    line = [sys.executable, "-m", "iotrace", "merge", "--inputs", "a.json", "--output", "out.json"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, *more], cwd=tmp_path, capture_output=True, text=True)

    done = run()
    assert done.returncode == 0, done.stderr
    assert "slices     3 in, 3 out" in done.stdout
    assert done.stderr == ""
    assert json.loads(run("--json").stdout)["counts"]["slices"] == {
        "read": 3,
        "selected_away": 0,
        "written": 3,
    }
    for wrong in (["--steps", "5"], ["--time", "2:1"], ["--ranks", "x"], ["--align", "end"]):
        assert run(*wrong).returncode == 2
    assert run("nothing.json").returncode == 1
    (tmp_path / "cut.json").write_bytes(KINETO.replace(b'"rank": 1', b'"rank": 0')[:-400])
    assert run("cut.json").returncode == 3


REAL_TRACES = sorted(REAL.glob("*.json.gz"))
FIRST = ("nccl_2ranks_rank0", "mi210")  # with collectives and without; all traces are merged together
ALONE = [
    pytest.param(trace, marks=() if trace.name.startswith(FIRST) else pytest.mark.slow)
    for trace in REAL_TRACES
]


@pytest.mark.skipif(not REAL_TRACES, reason="no recorded traces beside this checkout")
@pytest.mark.parametrize("trace", ALONE, ids=lambda path: path.name.split(".")[0])
def test_real_traces_alone(tmp_path: Path, trace: Path) -> None:
    raw = json.loads(gzip.decompress(trace.read_bytes()), strict=False)["traceEvents"]
    phases = Counter(event["ph"] for event in raw)
    summary, imported = _both(tmp_path, [str(trace)])
    assert summary.counts["slices"].written == phases["X"]
    assert imported["slices"][0][0] == phases["X"] + phases["i"]
    # No duration changed: to the ns, as the recorder wrote it.
    durations = sum(round(event["dur"] * 1000) for event in raw if event["ph"] == "X")
    assert imported["slices"][0][1] == durations
    assert summary.arrows_backwards == 0
    assert summary.problems == []


class Phase(msgspec.Struct):
    """What kind an event is: the rest of 160 MB need not be decoded to be counted."""

    ph: str


class Phases(msgspec.Struct):
    """A trace's events."""

    traceEvents: list[Phase]  # noqa: N815


@pytest.mark.skipif(not REAL_TRACES, reason="no recorded traces beside this checkout")
def test_real_traces_together_and_with_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.pfw").write_bytes(DFTRACER)
    inputs = [*map(str, REAL_TRACES), str(tmp_path / "log.pfw")]
    slices = 2
    for trace in REAL_TRACES:
        events = msgspec.json.decode(gzip.decompress(trace.read_bytes()), type=Phases).traceEvents
        slices += sum(event.ph in "Xi" for event in events)
    with pytest.raises(IotraceError, match="not traces of one job"):
        merge(inputs, tmp_path / "out.json")
    for kind in ("out.json", "out.pftrace"):
        merge(inputs, tmp_path / kind, Options(align_start=True))
        errors, (count,) = query(tmp_path / kind, ERRORS, "select count(*) from slice")
        assert errors == []
        assert count == [slices]


def test_a_file_given_twice_is_merged_once(tmp_path: Path) -> None:
    """A session holds copies of the traces that its program exported."""
    one = _write(tmp_path / "a.json", [_slice(BASE_US, 5)])
    (tmp_path / "copy.json").write_bytes(Path(one).read_bytes())
    summary = merge([one, str(tmp_path / "copy.json")], tmp_path / "out.json", ONE)
    assert summary.notes == [f"{tmp_path / 'copy.json'} and {one} are the same: merged once"]
    assert summary.counts["slices"].written == 1
    again = merge([one, one], tmp_path / "out.json", ONE)
    assert again.notes == [f"{one} is named twice: merged once"]
    assert [source.events for source in again.sources] == [count.read for count in again.counts.values()]


def test_steps_that_are_nowhere_and_inputs_without_steps(tmp_path: Path) -> None:
    step = _slice(BASE_US, 100, "ProfilerStep#7", cat="user_annotation")
    stepped = _write(tmp_path / "a.json", [step])
    other = _write(tmp_path / "b.json", [_slice(BASE_US, 5)])
    out = tmp_path / "out.json"
    with pytest.raises(IotraceError, match="no input has a step from 500 up to 600") as raised:
        merge([stepped], out, Options(steps=(500, 600)))
    assert "7 to 7" in str(raised.value.remedy)
    with pytest.raises(IotraceError, match="the selection matches no events"):
        merge([stepped], out, Options(seconds=(100, 200)))
    assert not out.exists()
    summary = merge([stepped, other], out, Options(steps=(7, 8)))
    assert summary.notes == ["b.json has no steps of its own: all of it is kept (see --time)"]


def test_a_process_named_by_text(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": "trainer", "args": {"name": "my trainer"}}
    source = _write(tmp_path / "a.json", [named, {**_slice(BASE_US, 5), "pid": "trainer"}])
    merge([source], tmp_path / "out.pftrace", ONE)
    assert track_paths(tmp_path / "out.pftrace")[:2] == ["a.json", "a.json / my trainer"]
