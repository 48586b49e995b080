"""One reader of Chrome's JSON: as text for a merge, as columns for a report, decoded, it finds the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from iotrace import compiled
from iotrace.cli.report import report
from iotrace.errors import TraceError
from iotrace.sources.byte_stream import blocks
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.chrome.scan import text_scan
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.kineto.trace import KinetoTrace
from tests.support.mutate import ARRAY, KINETO, mutated

needs_library = pytest.mark.skipif(
    not compiled.available(), reason="no C compiler when iotrace was installed"
)
BASE_NS = 1_795_000_000_000_000_000
_CONTROLS = dict.fromkeys(range(32), " ")  # a merge writes them so
Found = tuple[list[Any], list[str]]

ODD = b"""[
{"ph":"X","ts":1.0005,"dur":0.0005,"pid":"7","tid":"","name":"a\\u00e9\\n","cat":"kernel",
 "args":{"stream":"12","device":3.9,"correlation":18446744073709551615,"bytes":-4,"External id":1e3,
         "external id":"x","Sequence number":null,"Fwd thread id":true,"Collective name":null,
         "a":{"stream":4}}},
{"ph":"X","ts":1.0015,"dur":1.0005,"pid":-7,"tid":"sp\x01ace","name":"a\xc3\xa9\x0b","cat":"Kernel",
 "args":{"stream":["7"],"stream":7,"external id":9,"External id":8,
         "Collective name":"x","In msg nelems":"5"}},
{"ph":"i","ts":3,"name":"gloo:broadcast","args":[1]},{"ph":"I","ts":3,"name":"gloo:broadcast","args":"x"},
{"ph":"s","ts":4,"id":"0x1f","cat":"Async","pid":7,"tid":1},
{"ph":"f","ts":5,"id":31,"cat":"ac2g","pid":7,"tid":1},
{"ph":"t","ts":4,"id":"not hex"},{"ph":"t","ts":4,"id":-3},{"ph":"t","ts":4,"id":12345678901234567},
{"ph":"t","ts":4},{"ph":"s","ts":4,"id":12345678901234},{"ph":"C","ts":4,"args":{"x":1}},
{"ph":"M","name":"process_name","pid":"7","args":{"name":"p\\u00e9\x01"}},
{"ph":"M","name":"thread_name","pid":7,"tid":1,"args":{"name":5}},{"ph":"M","name":"thread_name","pid":7},
{"ph":"B","ts":9,"pid":1,"name":"b","dur":4},{"ph":"E","ts":11,"pid":1},{"ph":"B","ts":12,"pid":1}
]"""


def _as_text(path: Path) -> Found:
    """Times, phases, tracks and names of what a report takes from a trace, and the problems."""
    problems: list[str] = []
    reader = ChromeReader(text_scan())
    found = []
    for batch in reader.batches(blocks(path, problems)):
        for row, phase in enumerate(batch.phases.tolist()):
            if phase in b"XiI":
                duration = max(0, int(batch.duration_ns[row])) if phase == ord("X") else 0
                name = batch.value(row, "name")
                name = name.translate(_CONTROLS) if isinstance(name, str) else ""
                found.append((int(batch.start_ns[row]), duration, name))
    return found, problems + reader.problems


def _as_columns(path: Path) -> tuple[Found, KinetoTrace | None]:
    try:
        trace = read_kineto(path, near_ns=BASE_NS)
    except TraceError:
        return ([], ["it holds no array of traceEvents"]), None
    starts = trace.events.start_ns - (trace.base_ns or 0)
    rows = zip(starts.tolist(), trace.events.duration_ns.tolist(), trace.events.name.tolist(), strict=True)
    of_base = ("it does not say", "its base time", "1 begin", "2 begin")
    problems = [problem for problem in trace.problems if not problem.startswith(of_base)]
    return ([(start, duration, trace.names[name]) for start, duration, name in rows], problems), trace


def _described(trace: KinetoTrace) -> dict[str, Any]:
    """Everything in a trace, its strings instead of their numbers, which depend on the order of reading."""
    events, flows = trace.events, trace.flows
    strings = {
        "thread": [trace.threads[number] for number in events.thread],
        "category": [trace.categories[number] for number in events.category],
        "name": [trace.names[number] for number in events.name],
        "details": [trace.details[number].replace(b" ", b"") for number in events.details],
        "memory thread": [trace.threads[number] for number in trace.memory.thread],
        "flow thread": [trace.threads[number] for number in flows.thread],
        "flow category": [trace.flow_categories[number] for number in flows.category],
        "collective": [None if number < 0 else trace.collectives[number] for number in events.collective],
    }
    columns = {
        name: getattr(table, name).tolist()
        for table in (trace.memory, events, flows)
        for name in table.__struct_fields__
        if name not in strings
    }
    columns = {name: column for name, column in columns.items() if name not in ("thread", "category")}
    others = (trace.document, trace.problems, trace.base_ns, trace.process_names, trace.thread_names)
    return {**strings, **columns, "others": others}


@needs_library
def test_text_columns_and_decoded_events_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutations: int
) -> None:
    """`--mutations N` makes a longer run of it."""
    path = tmp_path / "trace.json"
    for seed in range(mutations // 5):
        path.write_bytes(mutated(seed))
        (found, problems), trace = _as_columns(path)
        if b'"B"' not in path.read_bytes() and trace is not None:
            assert (found, problems) == _as_text(path), seed
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", lambda: None)
            (patient, _), _ = _as_columns(path)
        assert found == patient, seed


@needs_library
@pytest.mark.parametrize(
    "content",
    [KINETO, ARRAY, ODD, KINETO + KINETO, gzip.compress(KINETO), KINETO[:900]],
)
def test_the_patient_reader_makes_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    fast = read_kineto(path, near_ns=BASE_NS)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert _described(read_kineto(path, near_ns=BASE_NS)) == _described(fast)


@needs_library
def test_memory_and_what_is_kept_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    memory = {"Bytes": -512, "Total Allocated": 7, "Device Type": 1, "Device Id": 0, "Addr": 9}
    long = [list(range(1000))]
    events = [
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 3, "args": memory},
        {"ph": "X", "name": "mm", "ts": 1, "dur": 1, "args": {"Input Dims": [[2, 3]], "Input type": ["f"]}},
        {"ph": "X", "name": "k", "ts": 1, "dur": 1, "args": {"blocks per SM": 0.25}},
        {"ph": "X", "name": "cat", "ts": 1, "dur": 1, "args": {"Input Dims": long, "blocks per SM": 2}},
    ]
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10}))
    fast = read_kineto(path)
    found = fast.memory
    assert (found.time_ns.tolist(), found.bytes.tolist(), found.allocated.tolist()) == ([3010], [-512], [7])
    assert (found.reserved.tolist(), found.device_id.tolist(), found.address.tolist()) == ([-1], [0], [9])
    assert [fast.details[number] for number in fast.events.details] == [
        b"\xff\xff\xff\xff",
        b'[[2, 3]]\xff["f"]\xff\xff\xff',
        b"\xff\xff0.25\xff\xff",
        b"",
    ]
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert _described(read_kineto(path)) == _described(fast)


@needs_library
def test_odd_arguments(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(ODD)
    trace = read_kineto(path, near_ns=0)
    events = trace.events
    assert events.start_ns.tolist()[:2] == [1000, 1002]
    assert [trace.threads[number] for number in events.thread[:2]] == [(7, ""), (-7, "sp ace")]
    assert [trace.names[number] for number in events.name[:2]] == ["a\u00e9\n", "a\u00e9 "]
    assert events.stream.tolist()[:2] == [12, 7]
    assert events.device.tolist()[:2] == [3, -1]
    assert events.correlation.tolist()[:2] == [-1, -1]
    assert events.bytes.tolist()[:2] == [-4, -1]
    assert events.external_id.tolist()[:2] == [-1, 9]
    assert events.collective.tolist() == [-1, 0, 1, 2, -1]
    assert [(one.name, one.elements) for one in trace.collectives] == [
        ("x", 5),
        ("broadcast", None),
        ("broadcast", None),
    ]
    assert trace.flow_categories == ["ac2g", ""]
    assert trace.flows.flow.tolist()[:2] == [31, 31]
    assert len(set(trace.flows.flow.tolist())) == 6
    assert (trace.process_names, trace.thread_names) == ({7: "p\u00e9 "}, {(7, 1): "5"})


def test_a_report_without_the_library_says_that_it_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(KINETO)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert report.main([str(path), "--json"], standalone_mode=False) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "reading traces gives the same result ten to twenty times slower" in said[0]
