"""Calls to C's buffered files count as I/O where the library's own calls do not show inside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from iotrace.analysis.results import FileIo, Io
from iotrace.analysis.storage.io import io_of
from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, PosixState
from iotrace.sources.dftracer import stdio
from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.records import Identity, Record, Text, Tick
from iotrace.sources.session import open_session
from iotrace.timeline.calls import call_tracks

PID = 7
HASHES = {"a.jpg": "fa", "b.jpg": "fb"}


def call(name: str, start_us: int, length_us: int = 1, file: str = "a.jpg", **args: Any) -> dict[str, Any]:
    """A call as dftracer 2.2 writes it."""
    category = "POSIX" if name in ("read", "write", "open64", "mmap64") else "STDIO"
    return {"name": name, "cat": category, "type": 3, "pid": PID, "tid": args.pop("tid", PID), "ph": 1} | {
        "ts": start_us,
        "dur": length_us,
        "args": {"hhash": "h", "fhash": HASHES[file], **args},
    }


def write_log(path: Path, *calls: dict[str, Any]) -> None:
    pooled = [("HH", "host", "h"), *(("FH", f"/d/{name}", value) for name, value in HASHES.items())]
    lines: list[dict[str, Any]] = [
        {
            "name": kind,
            "cat": "dftracer",
            "ph": 4,
            "pid": PID,
            "tid": PID,
            "args": {"name": name, "value": value},
        }
        for kind, name, value in pooled
    ]
    lines += [{"id": number, **one} for number, one in enumerate(calls, start=1)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "io-1-preload.pfw").write_text("".join(json.dumps(one) + "\n" for one in lines))


def read(tmp_path: Path, *calls: dict[str, Any]) -> PosixCalls:
    write_log(tmp_path, *calls)
    return read_posix(tmp_path)


def report(path: Path, *calls: dict[str, Any], rchar: int = 0, only: tuple[str, ...] = ()) -> Io:
    """The I/O of a session of one process, which read `rchar` bytes by the kernel's account."""
    records: list[Record] = [Tick((0, 0, 1), 0, 0), Tick((10**12, 10**12, 1), 0, rchar), Text(1, "/d/a.jpg")]
    directory = path / names.PROCESSES / "7-0"
    directory.mkdir(parents=True)
    manifest = Manifest(
        names.FORMAT_VERSION, "0", ["python"], "/d", "host", 0, 1, PosixState(True, list(only))
    )
    (path / names.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (path / names.OUTCOME).write_bytes(msgspec.json.encode(Outcome(0, 0, 0)))
    identity = Identity(1, PID, 0, "main", (0, 0, 1), node="host")
    (directory / names.PROCESS).write_bytes(msgspec.json.encode(identity))
    (directory / names.RECORDS).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    (directory / names.SPANS).write_bytes(b"")
    write_log(path / names.POSIX, *calls)
    session = open_session(path)
    found = io_of(session, session.ranks[0])
    assert found is not None
    return found[0]


def the_file(found: Io) -> FileIo:
    (file,) = found.files
    return file


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("fread", {"ret": 10, "count": 12, "size": 100}, 1000),
        ("fread", {"ret": 0, "count": 12, "size": 1}, 0),
        ("fread", {"ret": 10}, -1),  # items of a size that is not known
        ("fwrite", {"ret": 3, "count": 3, "size": 7}, 21),
        ("fgets", {"ret_len": 13, "num": 100}, 13),
        ("fgets", {"num": 100}, 0),  # the end of the file
        ("fgetc", {"ret": 255}, 1),
        ("getc", {"ret": -1}, 0),
        ("getline", {"ret": 6}, 6),
        ("fscanf", {"ret": 2}, -1),  # fields, of any length
        ("fseek", {"ret": 0, "whence": 0, "offset": 40}, 40),
        ("fseek", {"ret": 0, "whence": 2, "offset": 0}, -1),
        ("fseek", {"ret": -1, "whence": 0, "offset": 40}, -1),
        ("rewind", {}, 0),
        ("ftell", {"ret": 99}, 99),
    ],
)
def test_a_result_is_bytes_or_a_position(
    tmp_path: Path, name: str, args: dict[str, Any], result: int
) -> None:
    assert read(tmp_path, call(name, 10, **args)).result.tolist() == [result]


def test_calls_inside_a_call_of_stdio_are_of_its_thread_and_file(tmp_path: Path) -> None:
    calls = read(
        tmp_path,
        call("fread", 10, 20, ret=4096, size=1),  # holds the next
        call("read", 12, 5, ret=4096),
        call("fread", 40, 20, ret=4096, size=1),  # beside reads of another thread and of another file
        call("read", 42, 5, ret=4096, tid=8),
        call("read", 42, 5, "b.jpg", ret=4096),
        call("read", 61, 5, ret=4096),
    )
    holders, held = stdio.nested(calls)
    assert np.flatnonzero(holders).tolist() == [0]
    assert np.flatnonzero(held).tolist() == [1]
    assert not any(mask.any() for mask in stdio.nested(calls.where(calls.end_ns == 0)))


def test_buffered_reads_are_reads(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        call("fopen", 10, 3, mode="rb"),
        call("fread", 20, 2, ret=4096, count=4096, size=1),
        call("fread", 30, 2, ret=1000, count=4096, size=1),
        call("fseek", 40, 1, ret=0, whence=0, offset=0),
        call("fread", 50, 2, ret=4096, count=4096, size=1),
        call("fclose", 60, 4),
        rchar=9192,
    )
    file = the_file(found)
    assert (file.opens, file.reads, file.read_bytes) == (1, 3, 9192)
    assert (file.read_ms_total, file.metadata_ms_total) == pytest.approx((0.006, 0.008))
    assert (file.sequential_fraction, file.reread_fraction) == pytest.approx((0.5, 4096 / 9192))
    assert file.by_worker == {"7": 3}
    assert found.coverage == 1
    assert found.processes[0].traced_bytes == 9192


def test_a_read_inside_a_buffered_one_counts_once(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        call("fopen64", 10, 9, mode="rb"),
        call("open64", 12, 3),
        call("fread", 20, 10, ret=100, count=100, size=1),
        call("read", 22, 5, ret=4096),
        call("fread", 40, 1, ret=100, count=100, size=1),  # out of the buffer
        rchar=4096,
    )
    file = the_file(found)
    assert (file.opens, file.reads, file.read_bytes) == (1, 2, 4196)
    assert found.ms_total == pytest.approx(0.009)
    assert found.coverage == 1  # no more was seen than there was


def test_bytes_that_no_call_tells_are_unknown(tmp_path: Path) -> None:
    scanned = the_file(report(tmp_path / "a", call("fopen", 1), call("fscanf", 2, ret=3)))
    assert (scanned.reads, scanned.read_bytes, scanned.read_ms_total) == (1, None, pytest.approx(0.001))
    mapped = the_file(report(tmp_path / "b", call("open64", 1), call("mmap64", 4, offset=0, length=800)))
    assert (mapped.opens, mapped.maps, mapped.reads) == (1, 1, 0)
    assert (mapped.read_bytes, mapped.read_ms_total) == (None, None)
    header = the_file(report(tmp_path / "c", call("read", 1, ret=128), call("mmap64", 4, length=800)))
    assert (header.maps, header.read_bytes) == (1, 128)


def test_why_bytes_were_not_seen_is_told_only_where_data_was_read(tmp_path: Path) -> None:
    wrote = report(tmp_path / "a", call("open64", 1), call("write", 2, ret=8), rchar=5000)
    assert (wrote.coverage, wrote.unseen_because) == (0, None)
    plain = report(tmp_path / "b", call("read", 2, ret=8), rchar=5000)
    assert plain.unseen_because == "code and pipes are not traced"
    ahead = report(tmp_path / "c", call("fgetc", 2, ret=8), rchar=4096, only=("data",))
    assert ahead.unseen_because is not None
    assert "buffered files read ahead" in ahead.unseen_because
    assert "--io traces data alone" in ahead.unseen_because
    assert "numpy" not in ahead.unseen_because


def test_the_timeline_shows_bytes_of_buffered_calls(tmp_path: Path) -> None:
    report(tmp_path, call("fread", 20, 2, ret=10, count=10, size=100), call("read", 30, 2, ret=5))
    session = open_session(tmp_path)
    (track,) = call_tracks(session, session.processes[0])
    assert [one.args.get("bytes", one.args.get("ret")) for one in track.slices] == [1000, 5]
    assert "bytes" in track.slices[0].args
