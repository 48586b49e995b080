"""A session that grows beyond its limit: the oldest calls are dropped, their sums are kept and told."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
import pytest

from iotrace.cli.parameters import Size
from iotrace.launch.telemetry import size_limit
from iotrace.launch.telemetry.size_limit import SizeLimit
from iotrace.session import names, recorded
from iotrace.session.recorded import Walk
from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.recorder.reader import read_recorded
from tests.support.recorded import RecordedFile

MIB = 1 << 20
START_US = 1_795_000_000_000_000
FILE = {
    "name": "FH",
    "cat": "dftracer",
    "type": 1,
    "pid": 7,
    "ph": 4,
    "args": {"name": "a.h5", "value": "f0"},
}


def event(number: int, name: str = "pread64", cat: str = "POSIX") -> dict[str, Any]:
    args = {"hhash": "h0", "ret": 100, "count": 100, "offset": 0, "fhash": "f0"}
    times = {"ts": START_US + number, "dur": 1}
    return {
        "id": number,
        "name": name,
        "cat": cat,
        "type": 3,
        "pid": 7,
        "tid": 7,
        **times,
        "ph": 1,
        "args": args,
    }


def lines(*given: dict[str, Any]) -> str:
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in given)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(size_limit, "_CHECK_NS", 0)
    (tmp_path / "posix").mkdir()
    log = tmp_path / "posix" / "io-0123456789abcdef-preload.pfw"
    log.write_text(lines(event(1, "start", "dftracer"), FILE))
    return log


def grow(log: Path, first: int, count: int) -> None:
    with log.open("a") as file:
        file.write(lines(*(event(number) for number in range(first, first + count))))


def held(log: Path) -> int:
    return 512 * log.stat().st_blocks


def test_the_oldest_calls_are_dropped_and_told_and_the_others_stay(log: Path) -> None:
    limit = SizeLimit(str(log.parents[1]), MIB)
    for turn in range(12):  # 0.36 MiB each
        grow(log, 2 + 2000 * turn, 2000)
        limit.check([str(log.parents[1])])
        assert held(log) <= MIB + 64 * 1024
    with log.open("a") as file:
        file.write(lines(event(24_002, "end", "dftracer")))
    assert log.stat().st_size > 3 * MIB  # positions stay as dftracer knows them
    calls = read_posix(log.parent)
    assert calls.files == ["a.h5"]
    assert calls.ended == {7}
    assert calls.start_ns[-1] == 1000 * (START_US + 24_001)
    dropped = 24_000 - len(calls)
    assert 16_000 < dropped < 24_000
    (told,) = calls.problems
    assert (
        f"its oldest {dropped} POSIX calls, which moved {dropped * 100 / MIB:.1f} MiB, were dropped" in told
    )


def test_what_dftracer_lost_itself_is_told_beside_it(log: Path) -> None:
    limit = SizeLimit(str(log.parents[1]), MIB)
    for turn in range(4):
        grow(log, 2 + 2003 * turn, 2000)
        limit.check([str(log.parents[1])])
    assert "dftracer lost 9 calls of pid 7" in read_posix(log.parent).problems


def test_below_the_limit_nothing_is_touched(log: Path) -> None:
    grow(log, 2, 1000)
    before = log.read_bytes()
    SizeLimit(str(log.parents[1]), MIB).check([str(log.parents[1])])
    assert log.read_bytes() == before
    assert os.listdir(log.parent) == [log.name]


def test_a_file_system_without_holes_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "no holes")

    monkeypatch.setattr(size_limit, "_punch", refuse)
    limit = SizeLimit(str(log.parents[1]), MIB)
    for turn in range(4):
        grow(log, 2 + 2000 * turn, 2000)
        limit.check([str(log.parents[1])])
    calls = read_posix(log.parent)
    assert len(calls) == 8000
    (told,) = calls.problems
    assert "no call could be dropped: Operation not supported" in told


SECOND = 1_000_000_000
OLD_NS = SECOND


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(size_limit, "_CHECK_NS", 0)
    (tmp_path / names.POSIX).mkdir()
    return tmp_path


def recorded_file(pid: int, node: str = "") -> RecordedFile:
    file = RecordedFile(pid, OLD_NS, OLD_NS, node or os.uname().nodename)
    file.name_file(3, f"/d/{pid}.h5")
    file.thread(pid)
    return file


def bursts(file: RecordedFile, count: int, start_ns: int = OLD_NS, tid: int = 7) -> None:
    for number in range(count):
        if number % 400 == 0:
            file.row(3)
            file.name_file(1000 + number, f"/d/{number}.h5")
        file.burst(tid, start_ns + 100_000 * number, 1000, 3)


def others(path: Path) -> list[bytes]:
    """The heads of all records, and those that are no bursts as a whole."""
    data, descriptor = path.read_bytes(), os.open(path, os.O_RDONLY)
    try:
        head = recorded.read_head(descriptor)
        assert head is not None
        found = list(Walk().records(descriptor, head.used_bytes))
    finally:
        os.close(descriptor)
    return [data[each.at : each.at + (16 if each.type == recorded.BURSTS else each.bytes)] for each in found]


def test_of_recorded_calls_the_oldest_bursts_are_dropped_and_their_sums_stay(session: Path) -> None:
    limit, file = SizeLimit(str(session), MIB), recorded_file(7)
    for turn in range(7):  # 0.36 MiB each, of which a quarter cannot be dropped
        bursts(file, 6800, OLD_NS + turn * SECOND)
        path = file.write(session / names.POSIX)
        before = others(path)
        limit.check([str(session)])
        assert others(path) == before
        assert held(path) <= MIB + 64 * 1024
    assert path.stat().st_size > 2 * MIB
    calls = read_recorded([session / names.POSIX])
    assert calls.problems == ["the session grew beyond --max-size: the oldest calls have no times, only sums"]
    assert calls.start_ns[-1] == OLD_NS + 6 * SECOND + 100_000 * 6799
    gaps_ns = calls.start_ns[1:] - calls.start_ns[:-1]
    assert gaps_ns.max() > 10_000_000  # of what is old, the ends of chunks alone are there
    assert gaps_ns[-1000:].max() == 100_000
    assert calls.sums is not None
    assert len(calls.sums.file) == 7 * 17
    assert "/d/7.h5" in calls.files


def test_the_oldest_of_all_processes_are_dropped_first(session: Path) -> None:
    limit, files = SizeLimit(str(session), 5 * MIB // 4), [recorded_file(pid) for pid in (7, 8, 9)]
    for number, file in enumerate(files):
        bursts(file, 10_200, OLD_NS + (2 - number) * 100 * SECOND)
        file.write(session / names.POSIX)
    limit.check([str(session)])
    calls = read_recorded([session / names.POSIX])
    counts = [int((calls.pid == pid).sum()) for pid in (7, 8, 9)]
    assert counts[0] == 10_200
    assert counts[0] > counts[1] > counts[2]


def test_what_may_still_be_written_is_not_touched(session: Path) -> None:
    """Of calls less than 10 s old, in chunks that are not full, and of other hosts."""
    young, full, foreign = recorded_file(7), recorded_file(8), recorded_file(9, "elsewhere")
    bursts(young, 20_000, time.monotonic_ns() - 3 * SECOND)
    for tid in range(80):
        bursts(full, 339, tid=100 + tid)
    bursts(foreign, 20_000)
    paths = [file.write(session / names.POSIX) for file in (young, full, foreign)]
    before = [path.read_bytes() for path in paths]
    limit = SizeLimit(str(session), MIB)
    for _ in range(2):
        limit.check([str(session)])
    assert [path.read_bytes() for path in paths] == before
    assert not limit.refused
    full.burst(100, OLD_NS + SECOND, 1000, 3)  # now one of them is
    full.write(session / names.POSIX)
    limit.check([str(session)])
    assert len(read_recorded([session / names.POSIX])) < 20_000 + 80 * 339 + 1 + 20_000


def test_both_recorders_files_are_held_below_the_limit(log: Path) -> None:
    file = recorded_file(8)
    bursts(file, 6800)
    path = file.write(log.parent)
    limit = SizeLimit(str(log.parents[1]), MIB)
    for turn in range(6):
        grow(log, 2 + 4000 * turn, 4000)
        limit.check([str(log.parents[1])])
        assert held(log) + held(path) <= MIB + 128 * 1024


def test_a_file_system_without_holes_is_told_of_recorded_calls(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "no holes")

    monkeypatch.setattr(size_limit, "_punch", refuse)
    limit, file = SizeLimit(str(session), MIB), recorded_file(7)
    bursts(file, 30_000)
    file.write(session / names.POSIX)
    for _ in range(2):
        limit.check([str(session)])
    calls = read_recorded([session / names.POSIX])
    assert len(calls) == 30_000
    (told,) = calls.problems
    assert "no call could be dropped: Operation not supported" in told


@pytest.mark.parametrize("data", [b"", b"IOTPOSX1", b"IOTPOSX1" + b"\xff" * 4000, b"IOTPOSX1" * 500_000])
def test_a_damaged_file_is_left_as_it_is(session: Path, data: bytes) -> None:
    path = session / names.POSIX / recorded_file(7).name
    path.write_bytes(data)
    limit = SizeLimit(str(session), 1)
    limit.check([str(session)])
    assert path.read_bytes() == data
    assert not limit.refused


@pytest.mark.parametrize(
    ("text", "found"),
    [("1MiB", MIB), ("500MB", 500 * MIB), ("1.5g", 3 << 29), (" 10 GiB", 10 << 30), ("off", 0), ("0", 0)],
)
def test_sizes_are_read_as_people_write_them(text: str, found: int) -> None:
    assert Size().convert(text, None, None) == found


@pytest.mark.parametrize("text", ["", "lots", "5", "1KiB", "-3GiB", "nanGiB", "1e999GiB", "3 parsecs"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)
