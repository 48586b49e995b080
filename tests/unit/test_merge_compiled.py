"""The compiled scanner: what it takes it reads as the patient reader does, and it refuses the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from iotrace import compiled
from iotrace.merge.rewrite import FlowCheck, Rewriter
from iotrace.merge.selection import Selection
from iotrace.sources.chrome import scan
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.chrome.scan import text_scan
from iotrace.sources.clocks.session_clock import ClockMap
from iotrace.timeline.writers.chrome_json import ChromePart, opening
from iotrace.timeline.writers.id_map import Tracks
from iotrace.timeline.writers.lanes import Spill
from tests.support.texts import any_text

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no C compiler when iotrace was installed")

texts = any_text(max_size=6) | st.sampled_from(
    ["process_name", "thread_name", "a\\b", '"', "\x01", "é", "😀"]
)
numbers = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 1e-7, 1e22, 2**53, 1795226512198917.125])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
identities = st.integers(0, 5) | st.sampled_from(["Spans", "7", "", None, 2**40])
ids = st.integers(0, 9) | st.sampled_from(["0x1f", "1f", "xyz", "", -1, 2**60, 1.5, None])
events = st.fixed_dictionaries(
    {"ph": st.sampled_from([*"XXXXBEisftbneCMNP", "", "XX", "é"])},
    optional={
        "ts": st.integers(0, 10**7).map(lambda ns: ns / 1000) | numbers | texts,
        "dur": st.integers(0, 10**6).map(lambda ns: ns / 1000) | numbers | texts,
        "name": texts,
        "cat": texts,
        "pid": identities,
        "tid": identities,
        "id": ids,
        "bp": st.sampled_from(["e", "x", 1]),
        "s": st.sampled_from(["g", "p", "t", "", "ge", 1]),
        "id2": st.sampled_from([{"global": "0x1"}, {"local": "0x2"}, 3]),
        "bind_id": ids,
        "args": st.dictionaries(texts, values, max_size=2) | values,
        "own key": values,
    },
)


def _converted(document: bytes, directory: Path, keep_text: bool) -> tuple[list[Any], Any]:
    """The events of the part that is made of `document`, and what was counted."""
    reader = ChromeReader(text_scan() if keep_text else None)
    spill, flows = Spill(directory / "rows"), FlowCheck(directory / "flows")
    part = directory / "part"
    tracks = Tracks(1, 3, {})
    rewriter = Rewriter(
        tracks, sink := ChromePart(part, 0), spill, flows, ClockMap(5, 20_000.0), 0, Selection()
    )
    blocks: Iterator[bytes] = (document[at : at + 700] for at in range(0, len(document), 700))
    for batch in reader.batches(blocks):
        rewriter.take(batch)
    moved = sink.finish(spill, tracks, delete_unbound=False)
    counted = (rewriter.read, rewriter.written, moved, flows.backwards(), reader.lost_events)
    spill.close()
    flows.close()
    lines = part.read_text().removeprefix(opening(0).decode()).removesuffix(",\n")
    events = json.loads(f"[{lines}]")
    # Threads are numbered in the order in which batches bring them.
    threads = {
        item.tid: (
            item.raw_pid,
            item.raw_tid,
            item.stacked,
            tracks.base_track(item).tid != item.tid,
            item.lane,
        )
        for item in tracks.threads
    }
    for event in events:
        event["pid"], event["tid"] = None, threads[event["tid"]]
    return events, (counted, dict(rewriter.mended))


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=400,
)
@given(st.lists(events, max_size=6), st.booleans(), st.booleans())
@example([{"ph": "X", "ts": 1, "dur": -1}, {"ph": "M", "name": "thread_name", "args": []}], True, False)
def test_text_and_decoded_events_become_the_same(
    tmp_path: Path, found: list[dict[str, Any]], ascii_only: bool, indented: bool
) -> None:
    document = json.dumps(found, ensure_ascii=ascii_only, indent=1 if indented else None)
    data = document.encode(errors="surrogatepass")
    assert _converted(data, tmp_path, True) == _converted(data, tmp_path, False)


@pytest.mark.parametrize(
    "event",
    [
        b'{"ph":"X","ts":01}',
        b'{"ph":"X","ts":1.}',
        b'{"ph":"X","ts":1e3}',
        b'{"ph":"X","ts":"1"}',
        b'{"ph":"X","ts":NaN}',
        b'{"ph":"X","ts":99999999999999999}',
        b'{"ph":"X"}',
        b'{"ts":1}',
        b'{"ph":"XX","ts":1}',
        b'{"ph":"X","ph":"X","ts":1}',
        b'{"p\\u0068":"X","ts":1}',
        b'{"ph":"X","ts":1,"args":{"a":1e400}}',
        b'{"ph":"X","ts":1,"args":{"a":-}}',
        b'{"ph":"X","ts":1,"args":{"a":1,}}',
        b'{"ph":"X","ts":1,"args":{1:1}}',
        b'{"ph":"X","ts":1,"args":[1 2]}',
        b'{"ph":"X","ts":1,"args":[1}',
        b'{"ph":"X","ts":1,"args":nul}',
        b'{"ph":"X","ts":1,"args":' + b"[" * 61 + b"]" * 61 + b"}",
        b'{"ph":"X","ts":1,"name":"\xff"}',
        b'{"ph":"X","ts":1,"name":"\xc0\xaf"}',
        b'{"ph":"X","ts":1,"name":"\xed\xa0\x80"}',
        b'{"ph":"X","ts":1,"name":"\\ud800"}',
        b'{"ph":"X","ts":1,"name":"\\x"}',
        b'{"ph":"X","ts":1,"name":1}',
        b'{"ph":"X","ts":1,"pid":1.5}',
        b'{"ph":"X","ts":1,"pid":null}',
        b"[]",
        b"7",
    ],
)
def test_what_it_refuses(event: bytes) -> None:
    sound = b'{"ph":"X","ts":1}'
    found = scan.scan_rows(sound + b",\n " + event + b"," + sound)
    assert (_count(found), found.status) == (1, scan.ODD)
    assert found.consumed == len(sound) + 3


def _count(found: Any) -> int:
    return 0 if found.events is None else len(found.events.rows)


def test_what_is_cut_waits_for_more() -> None:
    event = '{"ph":"X","ts":1.5,"dur":2,"args":{"a":[1,true,null,-2.5e-3],"é\\u00e9\\n":""}}'.encode()
    for end in range(1, len(event)):
        found = scan.scan_rows(event[:end])
        assert (_count(found), found.consumed, found.status) == (0, 0, scan.MORE), event[:end]
    found = scan.scan_rows(event + b" ]")
    assert (_count(found), found.consumed, found.status) == (1, len(event) + 1, scan.END)
    assert found.events.rows["start_ns"].tolist() == [1500]
    assert found.events.rows["duration_ns"].tolist() == [2000]


@pytest.mark.parametrize(
    ("written", "ns"),
    [("0.0005", 0), ("0.0015", 2), ("0.00151", 2), ("0.0004999", 0), ("-1.2345", -1234), ("7", 7000)],
)
def test_times_are_rounded_as_pythons_decimals_are(written: str, ns: int) -> None:
    found = scan.scan_rows(b'{"ph":"X","ts":%s}' % written.encode())
    assert found.events.rows["start_ns"].tolist() == [ns]


def test_more_tracks_than_one_call_knows() -> None:
    document = b"[" + b",".join(b'{"ph":"X","ts":1,"dur":1,"pid":%d}' % pid for pid in range(9000)) + b"]"
    batches = list(ChromeReader(text_scan()).batches(iter([document])))
    assert [pid for batch in batches for pid, _ in batch.tracks] == list(range(9000))
