"""The scanner: whatever the layout and wherever a block ends, the events that json.loads would find."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.chrome.scan import text_scan
from iotrace.sources.dftracer.lines import DftracerReader, scan_hashes
from tests.support.texts import any_text

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | any_text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
times = st.integers(0, 2**62 // 1000).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}") | st.integers(
    0, 2**50
).map(str)
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXisfC"),
        "ts": times,
        "dur": st.integers(0, 10**9).map(lambda ns: f"{ns / 1000}"),
    },
    optional={
        "name": any_text(max_size=8),
        "cat": any_text(max_size=4),
        "pid": st.integers(0, 2**33) | any_text(max_size=3),
        "tid": st.integers(0, 2**33),
        "args": st.dictionaries(any_text(max_size=5), values, max_size=3),
        "unknown": values,
    },
)
LAYOUTS = [
    {"separators": (",", ":")},
    {"separators": (", ", ": ")},
    {"indent": 2},
    {"indent": 1, "ensure_ascii": False},
]


def _blocks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _document(found: list[dict[str, Any]], layout: dict[str, Any], bare: bool) -> bytes:
    """The events as JSON, their times as the digits that they are."""
    shown: list[Any] = [dict(event) for event in found]
    for place, event in enumerate(shown):
        for key in ("ts", "dur"):
            event[key] = f"#{place}{key}#"
    text = json.dumps(shown if bare else {"schemaVersion": 1, "traceEvents": shown, "after": [1]}, **layout)
    for place, event in enumerate(found):
        for key in ("ts", "dur"):
            text = text.replace(f'"#{place}{key}#"', event[key])
    return text.encode()


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(events, max_size=8), st.sampled_from(LAYOUTS), st.booleans(), st.integers(1, 400))
def test_every_layout_gives_the_same_events(
    found: list[dict[str, Any]], layout: dict[str, Any], bare: bool, size: int
) -> None:
    reader = ChromeReader()
    batches = list(reader.batches(_blocks(_document(found, layout, bare), size)))
    read = [event for batch in batches for event in batch.events]
    starts = [time for batch in batches for time in batch.start_ns.tolist()]
    durations = [time for batch in batches for time in batch.duration_ns.tolist()]
    extras = [batch.extra.get(place, {}) for batch in batches for place in range(len(batch.events))]
    assert reader.lost_events == 0
    assert starts == [round(Decimal(event["ts"]) * 1000) for event in found]
    assert durations == [round(Decimal(event["dur"]) * 1000) for event in found]
    for event, extra, expected in zip(read, extras, found, strict=True):
        for key in ("ph", "name", "cat", "pid", "tid"):
            value = getattr(event, key)
            assert (value is msgspec.UNSET) == (key not in expected)
            assert value is msgspec.UNSET or value == expected[key]
        if "args" in expected:
            assert json.loads(bytes(event.args)) == expected["args"]
        assert extra == ({"unknown": expected["unknown"]} if "unknown" in expected else {})
    if not bare:
        assert reader.metadata == {"schemaVersion": 1, "after": [1]}


def test_a_nanosecond_of_1970s_time_is_kept() -> None:
    """Doubles of us since 1970 are 256 ns coarse."""
    document = (
        b'[{"ph":"X","ts":1795226512198917.123,"dur":0.001},{"ph":"X","ts":1795226512198917.124,"dur":0.001}]'
    )
    batches = ChromeReader().batches(iter([document]))
    assert [time for batch in batches for time in batch.start_ns.tolist()] == [
        1795226512198917123,
        1795226512198917124,
    ]


@pytest.mark.parametrize("way", ["as text", "decoded", "digits", "patiently"])
@given(times_ps=st.sets(st.integers(0, 10**12).filter(lambda ps: ps % 1000 != 500), min_size=2, max_size=20))
def test_slices_that_touch_in_picoseconds_touch_in_nanoseconds(way: str, times_ps: set[int]) -> None:
    bounds = sorted(times_ps)
    spans = [*itertools.pairwise(bounds), (bounds[0], bounds[-1])]

    def shown(ps: int) -> str:
        return f"{ps // 10**6}.{ps % 10**6:06d}"

    more = {
        "digits": ',{"ph":"i","ts":1795226512198917.125}',
        "patiently": ',{"ph":"i","ts":"1"}',
    }.get(way, "")
    found = ",".join(f'{{"ph":"X","ts":{shown(at)},"dur":{shown(end - at)}}}' for at, end in spans)
    batches = ChromeReader(text_scan() if way == "as text" else None).batches(
        iter([f"[{found}{more}]".encode()])
    )
    read = [
        (start, start + duration)
        for batch in batches
        for start, duration in zip(batch.start_ns.tolist(), batch.duration_ns.tolist(), strict=True)
    ]
    assert read[: len(spans)] == [((at + 500) // 1000, (end + 500) // 1000) for at, end in spans]


@pytest.mark.parametrize("opening", [b"", b"[\n"])
def test_dftracers_log_with_hashes_spelled_out(opening: bytes) -> None:
    log = opening + (
        b'{"name":"FH","cat":"dftracer","type":1,"pid":7,"tid":7,"ph":4,"args":{"name":"d.h5","value":"f6"}}\n'
        b'{"id":1,"name":"read","cat":"POSIX","type":3,"pid":7,"tid":8,"ts":12,"dur":3,'
        b'"ph":1,"args":{"fhash":"f6"}}\n'
    )
    reader = DftracerReader(scan_hashes(log))
    read = [event for batch in reader.batches(iter([log])) for event in batch.events]
    assert [(event.ph, event.name) for event in read] == [("M", "FH"), ("X", "read")]
    assert json.loads(bytes(read[1].args)) == {"file": "d.h5", "id": 1, "type": 3, "fhash": "f6"}  # type: ignore[arg-type]
    assert reader.lost_events == 0


def test_dftracer_1_with_commas_and_letters() -> None:
    log = (
        b'[\n{"id":"0","name":"open64","cat":"POSIX","pid":"7","tid":"7",'
        b'"ts":"12","dur":"3","ph":"X","args":{}}\n]\n'
    )
    reader = DftracerReader({})
    (batch,) = [batch for batch in reader.batches(iter([log])) if batch.events]
    assert batch.start_ns.tolist() == [12_000]
    assert reader.lost_events == 0
