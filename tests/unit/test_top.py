"""`iotrace top`: what it shows of a session that grows is what the report says of the same steps."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.top import Watch
from iotrace.report.console import make_console
from iotrace.report.top import print_top
from iotrace.session import names
from iotrace.sources.live import process as live_process, recorded as live_recorded, session as live_posix
from iotrace.sources.live.process import Tail, last_rows
from iotrace.sources.live.session import LiveSession
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.session import open_session
from tests.support.growing import MS, SECOND, Growing, GrowingRecorded, agrees, looked
from tests.support.runs import in_process


def recorded(
    path: Path, whole: Path, steps: int, kind: type[Growing] = Growing, **how: Any
) -> tuple[Growing, int, list[RankAnalysis]]:
    """A session to be grown at `path`, when it ends, and the analysis of the same session as a whole."""
    complete = kind(whole, **how)
    complete.record(steps)
    complete.end()
    growing = kind(path, **how)
    return growing, growing.record(steps), SessionAnalysis(open_session(whole)).ranks


KINDS = pytest.mark.parametrize("kind", [Growing, GrowingRecorded])


@KINDS
@pytest.mark.parametrize(("workers", "calls"), [(1, 1), (2, 12), (3, 3)])
def test_a_session_in_pieces_agrees_with_its_report(
    tmp_path: Path, kind: type[Growing], workers: int, calls: int
) -> None:
    how = {"workers": workers, "calls": calls}
    growing, end_ns, whole = recorded(tmp_path / "s", tmp_path / "whole", 250, kind, **how)
    watch = Watch(LiveSession(growing.path))
    explained = 0
    for until_ns in range(SECOND, end_ns, 600 * MS):
        growing.grow(until_ns)
        explained += agrees(*looked(watch), whole)
    growing.end()
    found, windows = looked(watch)
    assert agrees(found, windows, whole) == 50
    assert explained > 100
    assert found.state == "ended"
    assert found.ranks[0].steps.count == 50
    assert found.verdict is not None
    assert ("handing" if workers > 1 else "slow to decode") in (found.verdict.why or "")


def test_a_late_look_reads_the_newest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing, _, whole = recorded(tmp_path / "s", tmp_path / "whole", 800, calls=4)
    growing.grow(1 << 62)
    read_bytes: list[int] = []
    piece = Tail._piece
    monkeypatch.setattr(Tail, "_piece", lambda *args: (read_bytes.append(args[2] - args[1]), piece(*args))[1])
    monkeypatch.setattr(live_process, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(live_posix, "MOST_BYTES", 200_000)
    watch = Watch(LiveSession(growing.path))
    assert agrees(*looked(watch), whole) == 50
    size = sum(path.stat().st_size for path in growing.path.rglob("*") if path.is_file())
    assert sum(read_bytes) < size + 400_000  # passed over once, in search of names
    read_bytes.clear()
    assert agrees(*looked(watch), whole) == 50
    assert read_bytes == []


@KINDS
def test_memory_stays_bounded_while_a_run_goes_on(tmp_path: Path, kind: type[Growing]) -> None:
    growing = kind(tmp_path, calls=4)
    end_ns = growing.record(700)
    live = LiveSession(tmp_path)
    watch = Watch(live)
    kept = []
    for until_ns in range(SECOND, end_ns, 2 * SECOND):
        growing.grow(until_ns)
        watch.look()
        kept.append(sum(len(each.records) for each in live._processes.values() if each is not None))
    assert max(kept[len(kept) // 2 :]) <= max(kept[: len(kept) // 2]) + 20
    assert 0 < len(live._calls.calls(live.poll().clocks)) < 4 * 400


@KINDS
def test_calls_that_are_passed_over_leave_the_cause_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Growing]
) -> None:
    growing = kind(tmp_path, calls=50)
    growing.record(200)
    growing.grow(1 << 62)
    monkeypatch.setattr(live_posix, "MOST_BYTES", 20_000)
    monkeypatch.setattr(live_recorded, "MOST_BYTES", 20_000)
    found, windows = looked(Watch(LiveSession(tmp_path)))
    wait = found.ranks[0].data_wait
    assert wait.raw_ms is not None
    assert sum(wait.causes_ms.values()) == pytest.approx(wait.raw_ms)
    assert wait.causes_ms["unknown"] > 0.5 * wait.raw_ms
    assert wait.causes_ms["transform"] == 0
    assert len(windows[0].kept) == 50


def test_calls_that_another_host_still_holds_leave_the_cause_unknown(tmp_path: Path) -> None:
    growing = GrowingRecorded(tmp_path)
    growing.record(100)
    growing.grow(1 << 62)
    for path in (tmp_path / names.POSIX).iterdir():
        path.unlink()
    (tmp_path / names.POSIX / names.RECORDED_IN).write_text("/nowhere/iotrace-posix-1")
    found = Watch(LiveSession(tmp_path)).look()
    wait = found.ranks[0].data_wait
    assert wait.raw_ms is not None
    assert wait.causes_ms["unknown"] > 0.5 * wait.raw_ms
    assert wait.causes_ms["transform"] == 0
    assert "causes are unknown here until it ends" in found.notes[0]


def test_several_ranks_have_a_row_each_and_the_worst_ones_causes(tmp_path: Path) -> None:
    for rank, workers in ((0, 3), (1, 1)):
        growing = Growing(tmp_path / "s", workers=workers, rank=rank)
        growing.record(150)
        growing.grow(1 << 62)
    found = Watch(LiveSession(tmp_path / "s")).look()
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.verdict is not None
    assert found.verdict.rank == 1
    assert [bool(rank.data_wait.causes_ms) for rank in found.ranks] == [False, True]
    assert all(rank.steps.count == 50 for rank in found.ranks)


def test_what_is_awaited_is_said(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.record(30)
    watch = Watch(LiveSession(tmp_path))
    said = [watch.look().awaited]
    for until_ns in (SECOND // 2, 3 * SECOND // 2, 5 * SECOND):
        growing.grow(until_ns)
        said.append(watch.look().awaited)
    assert said[0] == "the program's first Python process"
    assert said[1] == "the first batch or training step (2 Python processes started; imports may still run)"
    assert said[-1] is None


def test_nothing_is_written_into_the_session(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.record(100)
    growing.end()

    def state() -> list[tuple[str, int, int]]:
        found = sorted(tmp_path.rglob("*"))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found]

    before = state()
    assert in_process("top", str(tmp_path)).returncode == 0
    assert state() == before


def test_no_line_is_too_long_or_ends_in_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(20):
        growing = Growing(tmp_path / "s", workers=1 + rank % 2, rank=rank)
        growing.record(60)
        growing.grow(1 << 62)
    found = Watch(LiveSession(tmp_path / "s")).look()
    for width in (60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        console = make_console(stderr=False)
        with console.capture() as capture:
            print_top(found, console)
        text = capture.get()
        assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    assert "17 other ranks: median step" in text


def test_the_command_takes_the_newest_session_and_ends_with_it(tmp_path: Path) -> None:
    for name, steps in (("old", 20), ("new", 80)):
        growing = Growing(tmp_path / name)
        growing.record(steps)
        growing.end(exit_code=3)
        manifest = json.loads((tmp_path / name / names.MANIFEST).read_text())
        manifest["started_ns"] += steps
        (tmp_path / name / names.MANIFEST).write_text(json.dumps(manifest))
    done = in_process("top", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FAILED exit code 3")
    assert "\nNext     iotrace report new\n" in done.stdout
    assert "\x1b" not in done.stdout


def test_json_is_a_line_a_refresh(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.record(80)
    growing.grow(1 << 62)
    done = in_process("top", str(tmp_path), "--json", "-n", "3", "--interval", "0.2", "--steps", "7")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["ranks"][0]["steps"]["count"] for each in found] == [7, 7, 7]
    assert all(one["time_s"] < other["time_s"] for one, other in pairwise(found))


def test_a_directory_without_a_session_is_a_sentence(tmp_path: Path) -> None:
    done = in_process("top", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no session in" in done.stderr
    done = in_process("top", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "f"
    tail = Tail(path)
    assert tail.read(100) == (b"", (0, 0))
    path.write_bytes(b"one\ntw")
    assert tail.read(100) == (b"one\n", (0, 0))
    assert tail.read(100)[0] == b""
    path.write_bytes(b"one\ntwo\n")
    assert tail.read(100)[0] == b"two\n"
    path.write_bytes(b"one\ntwo\nthree\nfour\nfive\n")
    data, passed = tail.read(8)
    assert data == b"five\n"
    assert tail.search(re.compile(rb"\n(?!t)[^\n]+"), passed) == [b"four"]
    assert tail.grown() == 0


def test_last_rows_go_back_as_far_as_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "spans.bin"
    rows = b"".join(Growing._span(at, 10, 1, 0, -1, 1) for at in range(0, 100_000, 10))
    path.write_bytes(rows + b"half a row")
    found, reached = last_rows(path, SPAN_DTYPE, 50_000, 1 << 20)
    assert (int(found["start_ns"][0]), len(found), reached) == (49_990, 5_001, True)
    found, reached = last_rows(path, SPAN_DTYPE, 0, 72 * 100)
    assert (len(found), reached) == (100, False)
    assert len(last_rows(tmp_path / "none", SPAN_DTYPE, 0, 1)[0]) == 0
