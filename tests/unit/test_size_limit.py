"""A session that grows beyond its limit: the oldest calls are dropped, their sums are kept and told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from iotrace.cli.parameters import Size
from iotrace.launch.telemetry import size_limit
from iotrace.launch.telemetry.size_limit import SizeLimit
from iotrace.sources.dftracer.call_reader import read_posix

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
