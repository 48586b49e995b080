"""One reader of dftracer's logs: report and merge see the same events, losses and sentences."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from msgspec import UNSET

from iotrace.sources.byte_stream import blocks
from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.dftracer.lines import DftracerReader, scan_hashes

Seen = tuple[list[tuple[int, int, int, str, str]], list[str]]


def line(number: int, **changes: object) -> bytes:
    """A call of 2.x, by its number."""
    known = {"id": number, "name": "read", "cat": "POSIX", "type": 3, "pid": 7, "tid": 7, "ts": 1000 + number}
    known |= {"dur": 2, "ph": 1, "args": {"hhash": "h", "ret": 8, "fhash": "f"}}
    return json.dumps(known | changes).encode() + b"\n"


NAMES = b"".join(
    json.dumps({"name": kind, "cat": "dftracer", "pid": 7, "tid": 7, "ph": 4, "args": args}).encode() + b"\n"
    for kind, args in [("HH", {"name": "host", "value": "h"}), ("FH", {"name": "d.h5", "value": "f"})]
)
LOG = NAMES + b"".join(map(line, range(1, 7)))


def by_report(path: Path) -> Seen:
    calls = read_posix(path.parent)
    rows = zip(
        calls.start_ns.tolist(),
        (calls.end_ns - calls.start_ns).tolist(),
        calls.tid.tolist(),
        [calls.names[name] for name in calls.name],
        [calls.files[file] for file in calls.file],
        strict=True,
    )
    # What the report alone leaves out: `merge` draws calls without a file, too.
    own = ("dftracer lost", "without a file")
    return sorted(rows), [problem for problem in calls.problems if not any(text in problem for text in own)]


def by_merge(path: Path) -> Seen:
    problems: list[str] = []
    whole = b"".join(blocks(path, []))
    reader = DftracerReader(scan_hashes(whole))
    found = []
    for batch in reader.batches(blocks(path, problems)):
        for row, event in enumerate(batch.events):
            args = batch.value(row, "args")
            if event.ph == "X" and event.cat != "dftracer" and args is not UNSET and "fhash" in args:
                tid = int(str(event.tid)) if str(event.tid).isdecimal() else -1
                times = int(batch.start_ns[row]), max(0, int(batch.duration_ns[row]))
                file = args.get("file", f"(file {args['fhash']}, name lost)")
                found.append((*times, tid, str(event.name), str(file)))
    return sorted(found), [f"{path.name}: {problem}" for problem in problems + reader.problems]


LETTERS = LOG.replace(b'"ph": 1', b'"ph": "X"').replace(b'"ph": 4', b'"ph": "M"')


@pytest.mark.parametrize(
    ("name", "content", "calls", "said"),
    [
        ("a.pfw", LOG, 6, []),
        ("a.pfw", b"[\n" + LETTERS + b"]\n", 6, []),
        ("a.pfw", b"[" + LETTERS.replace(b"}\n", b"},\n"), 6, []),
        ("a.pfw", LOG.replace(b": 1003", b': "1003"').replace(b'"pid": 7', b'"pid": "7"'), 6, []),
        ("a.pfw", LOG + b"\0" * 100, 6, []),
        ("a.pfw", LOG.replace(b"d.h5", b"d\xff.h5"), 6, []),
        ("a.pfw", LOG[:-20], 5, ["a.pfw: 1 line could not be read, the first is line 8"]),
        ("a.pfw", LOG + line(7)[:30] + line(8), 7, ["a.pfw: 1 line could not be read, the first is line 9"]),
        (
            "a.pfw",
            LOG + b"garbage\n" * 2 + line(7),
            7,
            ["a.pfw: 2 lines could not be read, the first is line 9"],
        ),
        ("a.pfw.gz", gzip.compress(NAMES) + gzip.compress(LOG[len(NAMES) :]), 6, []),
    ],
)
def test_report_and_merge_read_the_same(
    tmp_path: Path, name: str, content: bytes, calls: int, said: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    report = by_report(path)
    assert report == by_merge(path)
    assert (len(report[0]), report[1]) == (calls, said)


def test_a_cut_gzip_log_says_so_in_both(tmp_path: Path) -> None:
    path = tmp_path / "a.pfw.gz"
    path.write_bytes(gzip.compress(LOG)[:-30])
    report = by_report(path)
    assert report == by_merge(path)
    assert any("breaks off" in problem for problem in report[1])


@pytest.mark.parametrize("seed", range(60))
def test_any_damage_is_read_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    damaged = bytearray(LOG)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(damaged))
        match chance.randrange(3):
            case 0:
                damaged[at : at + chance.randrange(1, 60)] = b""
            case 1:
                damaged[at:at] = chance.choice([b"\xff\xfe", b"\0\0", b"1e400", b'"', b"{", b"9" * 30, b"\n"])
            case _:
                damaged[at] = chance.randrange(256)
    path = tmp_path / "a.pfw"
    path.write_bytes(bytes(damaged))
    assert by_report(path) == by_merge(path)
