"""Native output by the compiled encoder and packer: the same bytes as by those in Python."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from iotrace import compiled
from iotrace.merge.rewrite import FlowCheck, Rewriter
from iotrace.merge.selection import Selection
from iotrace.sources.chrome import scan
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.chrome.scan import text_scan
from iotrace.sources.clocks.session_clock import ClockMap
from iotrace.timeline.writers import compiled_native, native, track_event
from iotrace.timeline.writers.compiled_native import LABELS
from iotrace.timeline.writers.id_map import Tracks
from iotrace.timeline.writers.lanes import (
    BEGIN,
    END,
    FLOW,
    FLOW_NEXT,
    INSTANT,
    NEXT,
    ROW,
    SLICE,
    STACKED,
    UNBOUND,
    Spill,
)
from iotrace.timeline.writers.native import NativePart
from tests.support import native_oracle
from tests.unit.test_merge_compiled import ids, numbers, texts, values

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no C compiler when iotrace was installed")

# Which number a thread gets depends on where batches end, which differs: there is one thread.
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from([*"XXXXBEisftbneCM", "XX"]),
        "ts": st.integers(0, 10**7).map(lambda ns: ns / 1000),
        "pid": st.just(1),
        "tid": st.just(1),
    },
    optional={
        "dur": st.integers(0, 10**6).map(lambda ns: ns / 1000),
        "name": texts,
        "cat": texts,
        "id": ids,
        "bp": st.sampled_from(["e", "x"]),
        "s": st.sampled_from(["g", "p", "t"]),
        "id2": st.sampled_from([{"global": "0x1"}, {"local": "0x2"}]),
        "bind_id": ids,
        "flow_in": st.booleans(),
        "flow_out": st.just(True),
        "tts": numbers,
        "args": st.dictionaries(texts, values, max_size=4) | values,
        "own key": values,
    },
)
FIRST = [
    {"ph": phase, "ts": 0, "dur": 1, "pid": 1, "tid": 1, "args": {"a": -0.0, "b": 0.0, "c": -0}}
    for phase in "XB"
]


def _part(document: bytes, directory: Path, delete_unbound: bool, keep_text: bool) -> tuple[bytes, Any]:
    reader = ChromeReader(text_scan() if keep_text else None)
    spill, flows = Spill(directory / "rows"), FlowCheck(directory / "flows")
    tracks = Tracks(1, 3, {})
    sink = NativePart(directory / "part", 1)
    rewriter = Rewriter(tracks, sink, spill, flows, ClockMap(5, 20_000.0), 0, Selection())
    for batch in reader.batches(iter([document])):
        rewriter.take(batch)
    moved = sink.finish(spill, tracks, delete_unbound)
    spill.close()
    flows.close()
    return (directory / "part").read_bytes(), (moved, rewriter.read, rewriter.written, rewriter.mended)


def _both(
    monkeypatch: pytest.MonkeyPatch, document: bytes, directory: Path, delete_unbound: bool
) -> list[Any]:
    found = [_part(document, directory, delete_unbound, keep_text=True)]
    with monkeypatch.context() as patch:
        patch.setattr(track_event, "Interned", native_oracle.Interned)
        patch.setattr(native, "Packets", native_oracle.Packets)
        found.append(_part(document, directory, delete_unbound, keep_text=False))
    return found


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=400,
)
@given(st.lists(events, max_size=6), st.booleans(), st.booleans(), st.booleans())
@example(
    [{"ph": "i", "ts": 1, "pid": 1, "tid": 1, "args": {"a": 123456789012345678901, "b": 1}}], True, True, True
)
@example(
    [{"ph": "X", "ts": 1, "pid": 1, "tid": 1, "args": {str(key): 1 for key in range(70)}}], True, True, True
)
@example([{"ph": "X", "ts": 1, "pid": 1, "tid": 1, "tts": 1.3380297463733052e16}], True, True, True)
@example([{"ph": "X", "ts": 1, "pid": 1, "tid": 1, "own key": ["\ud800"]}], True, False, True)
@example([{"ph": ph, "ts": 5, "pid": 1, "tid": 1, "id": 2133} for ph in "Es"], True, False, False)
@example(
    [{"ph": "X", "ts": 1, "pid": 1, "tid": 1, "args": {"a": {"b": ["x" * 200] * 100}}}], True, True, True
)
def test_both_write_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: list[dict[str, Any]],
    ascii_only: bool,
    indented: bool,
    delete_unbound: bool,
) -> None:
    document = json.dumps([*FIRST, *found], ensure_ascii=ascii_only, indent=1 if indented else None)
    data = document.encode(errors="surrogatepass")
    compiled_way, python = _both(monkeypatch, data, tmp_path, delete_unbound)
    assert compiled_way == python


@pytest.mark.parametrize(
    "number",
    [
        "0.1",
        "1e5",
        "-2.5E-3",
        "1e22",
        "1e23",
        "123456789012345.6",
        "0.30000000000000004",
        "5e-99",
        "9e99",
        "0.000000000000000000000012345",
        "1.0",
        "-0.0",
        "-0",
        "999999999999999999",
        "9007199254740993.0",
    ],
)
def test_numbers_are_read_as_python_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: str
) -> None:
    data = b'[{"ph":"X","ts":1,"pid":1,"tid":1,"args":{"a":%s,"b":[%s]}}]' % (2 * (number.encode(),))
    encoder = compiled_native.Interned(10)
    rows = scan.scan_rows(data[1:]).events.rows
    columns = np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32)
    assert encoder.bodies(data[1:], rows, 0, *columns, encoder.room_for(rows))[0] == 1  # not refused
    compiled_way, python = _both(monkeypatch, data, tmp_path, False)
    assert compiled_way == python


def test_a_key_that_comes_twice_holds_its_last_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = b'[{"ph":"X","ts":1,"args":{"a":1,"\\u0061":2,"b":{"c":3,"c":4}}},{"ph":"X","ts":2}]'
    compiled_way, python = _both(monkeypatch, data, tmp_path, False)
    assert compiled_way == python


def test_more_strings_than_are_interned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(track_event, "MOST_INTERNED", 3)
    found = [
        {"ph": "X", "ts": at, "pid": 1, "tid": 1, "name": f"n{at}", "cat": f"c{at}", "args": {f"a{at}": at}}
        for at in [0, 1, 2, 3, 4, 0, 5]
    ]
    compiled_way, python = _both(monkeypatch, json.dumps(found).encode(), tmp_path, False)
    assert compiled_way == python
    assert b"n4" in python[0]


@given(st.lists(st.binary(max_size=20), max_size=300))
def test_strings_have_their_index_as_number(found: list[bytes]) -> None:
    one, two = compiled_native.Interned(50), native_oracle.Interned(50)
    for text in found:
        assert one.number(LABELS, text) == two.number(LABELS, text)
    assert list(one.strings(LABELS)) == list(two.strings(LABELS))


placed_rows = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 20),
        st.sampled_from([SLICE, SLICE, SLICE, FLOW, FLOW_NEXT, BEGIN, END, INSTANT]),
        st.integers(1, 90),
        st.sampled_from([UNBOUND, 0, 0, 1, 2, 1 | NEXT]),
    ),
    max_size=60,
)


@given(placed_rows, st.booleans(), st.sampled_from([170, 400, 1 << 20]))
@example([(0, 0, FLOW, 43, UNBOUND)], False, 170)  # a body that ends like a field begins
def test_packets_are_the_same_however_small_the_buffer(
    found: list[tuple[int, int, int, int, int]], delete_unbound: bool, buffer_bytes: int
) -> None:
    found.sort(key=lambda row: row[0])
    text = bytes(range(1, 100)) * 2
    rows = np.array([(at, at + length, 7, kind, size) for at, length, kind, size, _ in found], ROW)
    placed = np.array([lane for *_, lane in found], np.int32)
    placed[np.isin(rows["kind"], [BEGIN, END])] = STACKED
    made = []
    room, compiled_native._OUT_BYTES = compiled_native._OUT_BYTES, buffer_bytes
    try:
        for way in (native_oracle.Packets, compiled_native.Packets):
            out = io.BytesIO()
            writer = way(b"\x50\x02\x68\x02", out)
            half = len(rows) // 2
            for piece in (slice(0, half), slice(half, None)):
                tracks = {0: 1 << 40, 1: 5, 2: 300, STACKED: 6}
                writer.write(rows[piece], placed[piece], tracks, text, delete_unbound)
            writer.close()
            made.append(out.getvalue())
    finally:
        compiled_native._OUT_BYTES = room
    assert made[0] == made[1]


def test_a_profiler_that_still_holds_a_frame_of_the_writer_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask samples the stacks of its tasks: what a frame held may live on when it has returned."""
    document = json.dumps({"traceEvents": FIRST}).encode()
    (tmp_path / "bare").mkdir()
    (tmp_path / "held").mkdir()
    bare = _part(document, tmp_path / "bare", False, keep_text=True)
    held: list[Any] = []
    write = native.Packets.write

    def sampled(self: Any, rows: Any, lanes: Any, tracks: Any, bodies: Any, delete_unbound: bool) -> None:
        held.append(np.frombuffer(bodies, np.uint8))
        write(self, rows, lanes, tracks, bodies, delete_unbound)

    monkeypatch.setattr(native.Packets, "write", sampled)
    assert _part(document, tmp_path / "held", False, keep_text=True) == bare
    assert held
