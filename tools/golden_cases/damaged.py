"""Damaged and odd traces, made in the same way each time: what was cut, overwritten, or never was right."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.mutate import ARRAY, DFTRACER, KINETO, mutated
from tools.golden_cases.recording import Make, Recorder
from tools.make_trace import write as make_trace

BASE_US = 1_795_000_000_000_000
_MUTATIONS = 40
_DFTRACER_1 = (
    b'{"id":"0","name":"start","cat":"dftracer","pid":4242,"tid":8484,"ts":1795000000001000,"dur":0,"ph":"i",'
    b'"args":{"hostname":"node1","version":"1.0.3"}}\n'
    b'{"id":"1","name":"read","cat":"POSIX","pid":4242,"tid":8484,"ts":1795000000001002,"dur":10,"ph":"X",'
    b'"args":{"hostname":"node1","fname":"/data/a.h5","ret":"64","count":"64"}}\n'
    b'{"id":"2","name":"close","cat":"POSIX","pid":4242,"tid":8484,"ts":1795000000001020,"dur":2,"ph":"X",'
    b'"args":{"hostname":"node1","fhash":"12","ret":"0"}}\n'
    b'{"id":"3","name":"FH","cat":"dftracer","pid":4242,"tid":8484,"ph":"M",'
    b'"args":{"name":"/data/b.h5","value":"12"}}\n'
)


def damaged() -> dict[str, Make]:
    """How each damaged trace is made, by name."""
    return {name: partial(_write, data=data) for name, data in _files()}


def _write(_: Recorder, path: Path, *, data: bytes) -> None:
    path.write_bytes(data)


def _files() -> Iterator[tuple[str, bytes]]:
    whole = _kineto()
    yield from _cut(whole)
    yield from _overwritten(whole)
    yield from _odd_values()
    yield from _odd_events()
    yield from _odd_documents()
    yield from _dftracer()
    for seed in range(_MUTATIONS):
        data = mutated(seed)
        suffix = "json.gz" if data[:2] == b"\x1f\x8b" else "json"
        yield f"mutated_{seed:02}.{suffix}", data


def _kineto() -> bytes:
    """A sound trace in Kineto's layout, 0.3 MB."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        make_trace(path, 0.3)
        return path.read_bytes()


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def _cut(whole: bytes) -> Iterator[tuple[str, bytes]]:
    packed = _packed(whole)
    for name, end in (("header", 5), ("tenth", len(packed) // 10), ("half", len(packed) // 2)):
        yield f"gz_cut_{name}.json.gz", packed[:end]
    for name, end in (("near_end", 200), ("trailer", 8), ("size", 3)):
        yield f"gz_cut_{name}.json.gz", packed[:-end]
    event = whole.index(b'"ph": "X"', len(whole) // 2)
    pieces = {
        "between_events": whole.index(b"},\n", event) + 2,
        "in_key": event + 2,
        "in_string": whole.index(b'"name": "', event) + 12,
        "in_number": whole.index(b'"ts": ', event) + 9,
        "in_args": whole.index(b'"args"', event) + 30,
        "before_end": whole.rindex(b"]"),
        "head": 20,
    }
    for name, end in pieces.items():
        yield f"json_cut_{name}.json", whole[:end]


def _overwritten(whole: bytes) -> Iterator[tuple[str, bytes]]:
    chance = random.Random(7)
    half, packed = len(whole) // 2, _packed(whole)
    noise = chance.randbytes(200)
    yield "garbage_over.json", whole[:half] + noise + whole[half + 200 :]
    yield "garbage_between.json", whole[:half] + noise + whole[half:]
    yield "garbage_zeros.json", whole[:half] + bytes(4096) + whole[half + 4096 :]
    yield "garbage_text.json", whole[:half] + b' oops "}{][,: ' + whole[half:]
    yield "garbage_head.json", b"warning: a line before\n" + whole
    yield "garbage_tail.json", whole + b"\nand a line behind\n"
    for offset in (12, len(packed) // 3, len(packed) // 2, len(packed) - 6):
        flipped = bytearray(packed)
        flipped[offset] ^= 0x10
        yield f"gz_flipped_{offset}.json.gz", bytes(flipped)
    middle = len(packed) // 2
    yield "gz_noise.json.gz", packed[:middle] + noise + packed[middle + 200 :]
    yield "gz_tail.json.gz", packed + b"and a tail"
    yield "gz_zeros.json.gz", packed + bytes(512)
    yield "gz_members.json.gz", _packed(whole[:half]) + _packed(whole[half:])
    yield "gz_second_cut.json.gz", _packed(whole[:half]) + _packed(whole[half:])[:-2000]
    yield "gz_twice.json.gz", _packed(packed)
    yield "gz_without_suffix.json", packed
    yield "plain_with_suffix.json.gz", whole


def _trace(*events: str | dict[str, Any], head: str = "", tail: str = "") -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return (f'{{{head}"traceEvents":[' + ",\n".join(texts) + f"]{tail}}}").encode("utf-8", "surrogatepass")


def _event(number: int = 0, **more: Any) -> dict[str, Any]:
    event = {"ph": "X", "pid": 7, "tid": 7, "ts": BASE_US + 10 * number, "dur": 5, "name": f"n{number}"}
    return {**event, "cat": "cpu_op", **more}


def _odd_values() -> Iterator[tuple[str, bytes]]:
    """One odd value in the second of three events."""
    values = {
        "nan": "NaN",
        "infinity": "Infinity",
        "minus_infinity": "-Infinity",
        "huge": "1e400",
        "long": "9" * 400,
        "above_64_bits": str(2**64),
        "negative": "-3",
        "text": '"12"',
        "word": '"x"',
        "null": "null",
        "true": "true",
        "list": "[1]",
        "decimals": "1795000000000010.123456789",
        "exponent": "1.79500000000001e15",
    }
    for field in ("ts", "dur", "pid"):
        for name, text in values.items():
            if field == "pid" and name in ("decimals", "exponent", "infinity", "minus_infinity", "huge"):
                continue
            odd = json.dumps(_event(1, **{field: "@"})).replace('"@"', text)
            yield f"{field}_{name}.json", _trace(_event(0), odd, _event(2))
    for name in ("nan", "huge", "above_64_bits", "long"):
        odd = json.dumps(_event(1, args={"x": "@"})).replace('"@"', values[name])
        yield f"args_{name}.json", _trace(_event(0), odd, _event(2))
    for field in ("ts", "dur", "pid", "tid", "name", "ph", "cat"):
        odd_event = {key: value for key, value in _event(1).items() if key != field}
        yield f"{field}_missing.json", _trace(_event(0), odd_event, _event(2))


def _odd_events() -> Iterator[tuple[str, bytes]]:
    begin, end = _event(1, ph="B", args={"a": 1}), _event(2, ph="E", args={"b": 2})
    yield "begin_end.json", _trace(_event(0), begin, _event(1, dur=2), end, _event(3))
    yield "begin_alone.json", _trace(_event(0), begin, _event(3))
    yield "end_alone.json", _trace(_event(0), end, _event(3))
    other = _event(2, ph="B", name="other")
    crossed = [begin, other, _event(4, ph="E", name="n1"), _event(5, ph="E", name="other")]
    yield "begin_end_crossed.json", _trace(*crossed)
    steps = [_event(0, ph="B", name="ProfilerStep#1", cat="user_annotation"), _event(1), _event(9, ph="E")]
    yield "begin_end_steps.json", _trace(*steps)
    pids = ["Spans", "", "Rank 1", "12"]
    yield "pids_of_text.json", _trace(*(_event(n, pid=pid, tid=f"t{n}") for n, pid in enumerate(pids)))
    loose = [_event(n, ph=phase, id="0x1f") for n, phase in enumerate("bnestfSTFNODPcVRiIC")]
    yield "phases.json", _trace(*loose)
    flow = [_event(0), _event(1, ph="s", id=1), _event(5), _event(5, ph="f", id=1, bp="e")]
    yield "flow.json", _trace(*flow)
    yield (
        "flow_backwards.json",
        _trace(_event(0), _event(6, ph="s", id=1), _event(5), _event(5, ph="f", id=1)),
    )
    yield "overlap.json", _trace(_event(0, dur=15), _event(1, dur=15), _event(2, dur=30))
    yield "unsorted.json", _trace(*(_event(n * 7 % 20) for n in range(20)))
    yield "times_below_zero.json", _trace(*(_event(ts=at) for at in (-1000, -400, 0, 500)))
    counters = [_event(n, ph="C", args={"a": n, "b": "nan" if n == 1 else n / 3}) for n in range(3)]
    yield "counters.json", _trace(*counters)
    yield "not_events.json", _trace(_event(0), "7", '"x"', "null", "[]", "{}", _event(1))
    yield "args_no_object.json", _trace(_event(0, args=[1, 2]), _event(1, args="x"), _event(2, args=None))


def _odd_documents() -> Iterator[tuple[str, bytes]]:
    one, two = _trace(_event(0)), _trace(_event(1), _event(2))
    yield "documents_two.json", one + b"\n" + two
    yield "documents_arrays.json", b"[" + json.dumps(_event(0)).encode() + b"]\n[]"
    yield "documents_three.json.gz", _packed(one) + _packed(two) + _packed(one)
    yield "events_twice.json", one[:-1] + b"," + two[1:]
    yield "events_last.json", _trace(_event(0), head='"a":{"traceEvents":[1]},"displayTimeUnit":"ns",')
    yield "events_first.json", _trace(_event(0), tail=',"baseTimeNanoseconds":1700000000000000000')
    yield "base_text.json", _trace(_event(0), head='"baseTimeNanoseconds":"17",')
    yield "base_negative.json", _trace(_event(0), head='"baseTimeNanoseconds":-5,')
    for name, text in (
        ("object", "{}"),
        ("array", "[]"),
        ("null", "null"),
        ("word", "no trace"),
        ("blank", " \n"),
    ):
        yield f"only_{name}.json", text.encode()
    yield "empty.json", b""
    yield "empty.json.gz", b""
    yield "empty_member.json.gz", _packed(b"")
    yield "no_events.json", _trace()
    yield "bom.json", b"\xef\xbb\xbf" + two
    yield "utf16.json", two.decode().encode("utf-16")
    yield "latin1.json", _trace(_event(0, name="caf@")).replace(b"@", b"\xe9")
    yield "latin1_args.json", _trace(_event(0, args={"k@": "v@"}), _event(1)).replace(b"@", b"\xff\xfe")
    yield "surrogates.json", _trace('{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"a\\ud800b"}', _event(1))
    for name, raw in (("newline", b"\n"), ("tab", b"\t"), ("bell", b"\x07"), ("nul", b"\x00")):
        yield f"control_{name}.json", _trace(_event(0, name="a@b"), _event(1)).replace(b"@", raw)
    yield "escapes.json", _trace(_event(0, name='a"b\\c/d\u00e9\U0001f600\u2028'), _event(1))
    deep = json.dumps(_event(0, args={"x": "@"})).replace('"@"', "[" * 80 + "]" * 80)
    yield "deep.json", _trace(deep, _event(1))
    deeper = json.dumps(_event(0, args={"x": "@"})).replace('"@"', "[" * 5000 + "]" * 5000)
    yield "deeper.json", _trace(deeper, _event(1))
    yield "keys_twice.json", _trace('{"ph":"X","ph":"i","pid":1,"pid":2,"tid":1,"ts":1,"dur":1,"name":"a"}')
    yield "seed_kineto.json", KINETO
    yield "seed_array.json", ARRAY
    yield "array_open.json", ARRAY[:-1] + b","


def _dftracer() -> Iterator[tuple[str, bytes]]:
    for version, log in (("1", _DFTRACER_1), ("2", DFTRACER)):
        lines = log.splitlines(keepends=True)
        yield f"v{version}.pfw", log
        yield f"v{version}.pfw.gz", _packed(log)
        yield f"v{version}_bracket.pfw", b"[\n" + log + b"]\n"
        yield f"v{version}_cut.pfw", log[:-30]
        yield f"v{version}_cut.pfw.gz", _packed(log * 50)[:-40]
        yield f"v{version}_damaged.pfw", lines[0] + lines[1][:40] + b"\n" + b"".join(lines[1:])
        yield f"v{version}_noise.pfw", lines[0] + b"\x00\xff garbage\n" + b"".join(lines[1:])
        yield f"v{version}_joined.pfw", log.replace(b"\n", b" ")
        yield f"v{version}_latin1.pfw", log.replace(b"h5", b"\xe95")
        yield f"v{version}_no_end.pfw", log.rstrip(b"\n")
        yield f"v{version}_names_lost.pfw", b"".join(line for line in lines if b'"FH"' not in line)
        yield f"v{version}_blank_lines.pfw", log.replace(b"\n", b"\n\n\r\n")
