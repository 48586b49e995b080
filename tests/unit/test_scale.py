"""A report's work grows as its session does: counted, not timed. `tools/bench big` writes such sessions."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tools.benchmarks.big import write_session

from iotrace.analysis import rank as of_rank
from iotrace.analysis.device.imbalance import imbalance_of
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.analysis.wait.waits import CAUSES, Explained, behind_ready_ns
from iotrace.sources.columns import Columns
from iotrace.sources.session import Session, open_session
from iotrace.timeline.build import build
from iotrace.timeline.model import Slice, Timeline
from tests.support.counting import instructions
from tests.support.runs import in_process
from tests.support.tables import deliveries_of, waits_of
from tests.unit.test_imbalance import late_by


def report(path: Path) -> Report:
    return analyse(SessionAnalysis(open_session(path)))


def work(path: Path, batches: int, loaders: int, workers: int) -> int:
    write_session(path, batches, loaders, workers)
    report(path)  # what is computed once in a process
    return instructions(lambda: report(path), "/iotrace/")


def test_work_is_linear_in_batches_and_in_loaders(tmp_path: Path) -> None:
    few, many = work(tmp_path / "few", 40, 10, 1), work(tmp_path / "many", 120, 30, 1)
    more = work(tmp_path / "more", 360, 90, 1)
    print(f"instructions a batch: {(many - few) // 80}, then {(more - many) // 240}")
    assert more - many < 1.2 * 3 * (many - few)


def test_a_batch_is_a_row_of_columns_and_no_objects(tmp_path: Path) -> None:
    """Objects of each batch, step and wait took 7,300 instructions a batch; most of these are the replay."""
    few, many = work(tmp_path / "few", 400, 1, 1), work(tmp_path / "many", 1200, 1, 1)
    assert (many - few) / 800 < 250


def test_a_selection_copies_only_what_is_asked_for() -> None:
    """A selection's fields are gathered when they are read: a report reads few of them."""
    rows = Columns(10_000, {"begin": np.arange(10_000), "end": np.arange(10_000) + 5, "worker": 3})
    odd = np.arange(1, 10_000, 2)
    tracemalloc.start()
    try:
        selections = [rows[odd] for _ in range(20)]
        assert tracemalloc.get_traced_memory()[0] < 8 * len(odd)
    finally:
        tracemalloc.stop()
    assert selections[0]["end"].tolist() == (odd + 5).tolist()
    assert rows[rows["worker"] == 3] is rows
    assert np.shares_memory(rows[np.arange(20, 80)]["begin"], rows["begin"])
    joined = Columns.joined([rows[odd], rows[:2]]).changed(worker=7)
    assert (len(joined), joined["begin"][-2:].tolist(), joined["worker"][0]) == (5_002, [0, 1], 7)
    assert rows[np.array([-1])]["end"].tolist() == [10_004]


def test_a_made_up_session_is_reported_as_it_was_made(tmp_path: Path) -> None:
    write_session(tmp_path / "s", 300, loaders=1, workers=2, ranks=2, calls=2)
    found = report(tmp_path / "s")
    assert [rank.steps.begun for rank in found.ranks] == [300, 300]
    for rank in found.ranks:
        assert rank.steps.mean_ms == 10
        assert rank.data_wait.raw_ms == 3
        assert rank.io.calls == 600
    assert found.session.complete


def test_a_timeline_of_too_much_shows_the_worst_part_and_blocks(tmp_path: Path) -> None:
    write_session(tmp_path / "s", 9_000, workers=1, calls=1)
    (rank,) = SessionAnalysis(open_session(tmp_path / "s")).ranks

    def slices(found: Timeline) -> list[Slice]:
        return [each for own in found.processes for track in own.tracks for each in track.slices]

    whole, part = slices(build(rank, [])), slices(build(rank, [], most=2_000))
    assert len(whole) > 70_000
    assert len(part) < 2_000 + 2_000 + 100  # details, blocks, what touches the edges
    assert {each.category for each in whole} | {"note", "steps"} == {each.category for each in part}
    kept = {(each.start_ns, each.end_ns, each.name) for each in whole}
    drawn = [each for each in part if each.category not in ("note", "steps")]
    assert all((each.start_ns, each.end_ns, each.name) in kept for each in drawn)
    blocks = [each.args or {} for each in part if each.category == "steps"]
    shown = sum(each.category == "step" for each in part)
    assert sum(int(block["steps"] or 0) for block in blocks) + shown == len(rank.loop.steps)
    assert "steps are shown in detail" in next(each.name for each in part if each.category == "note")


def test_batches_behind_a_ready_one_are_found_as_by_a_look_at_each() -> None:
    dice = random.Random(7)
    for count in (1, 2, 5, 400):
        made = []
        for number in range(count):
            asked = number * 100
            prepared = dice.choice([None, asked + 30, asked - 20 * dice.randrange(400)])
            epoch = number // dice.choice([7, 300])
            times = (asked, asked + 60)
            made.append(Delivery(0, number, 0, epoch, number, *times, prepared_ns=prepared))
        waits = [Explained(each, {cause: cause == "transport" for cause in CAUSES}) for each in made]
        expected = 0
        for number, each in enumerate(made):
            for later in made[number + 1 : number + 257]:
                if later.of_pass != each.of_pass or later.prepared_ns is None:
                    break
                if later.prepared_ns <= each.wait_start_ns:
                    expected += 59
                    break
        assert behind_ready_ns(deliveries_of(made), waits_of(waits)) == expected


def test_ranks_are_compared_by_work_that_grows_with_them() -> None:
    """Which rank was last in a collective was found anew for each rank, each time by looking at all twice."""

    def compared(count: int) -> int:
        ranks = [late_by(number, [20.0 * (number == 1)] * 5, by="data") for number in range(count)]
        return instructions(lambda: imbalance_of(ranks), "/iotrace/")

    compared(2)  # what is computed once in a process
    few, many, more = compared(8), compared(16), compared(32)
    assert more - many < 1.3 * 2 * (many - few)


def test_ranks_that_take_turns_to_be_late_are_compared_by_work_that_grows_with_their_collectives() -> None:
    """Who waited for whom was an arithmetic of intervals of its own for each pair of ranks."""

    def compared(count: int) -> float:
        delays = [[20.0 * (step % count == number) for step in range(64)] for number in range(count)]
        ranks = [late_by(number, own, by="data") for number, own in enumerate(delays)]
        return instructions(lambda: imbalance_of(ranks), "/iotrace/") / count

    compared(2)  # what is computed once in a process
    few, many = compared(4), compared(64)
    assert many < few


def test_each_rank_of_a_session_takes_the_same_work(tmp_path: Path) -> None:
    """Whose child each process is was looked for among all processes, for each rank anew."""

    def a_rank(count: int) -> float:
        write_session(tmp_path / f"{count}", 3, workers=1, ranks=count, calls=1)
        return instructions(lambda: report(tmp_path / f"{count}"), "/iotrace/") / count

    a_rank(2)  # what is computed once in a process
    few, many = a_rank(4), a_rank(32)
    assert many < few


def test_a_merge_looks_at_its_session_once_for_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_session(tmp_path / "s", 20, workers=1, ranks=4, calls=1)
    asked = []
    timed_failures, rglob = of_rank.timed_failures, Path.rglob

    def counted(session: Session, by_process: Mapping[int, of_rank.RankAnalysis]) -> object:
        asked.append("failures")
        return timed_failures(session, by_process)

    def searched(path: Path, pattern: str) -> object:
        if pattern == "*":
            asked.append("sizes")
        return rglob(path, pattern)

    monkeypatch.setattr(of_rank, "timed_failures", counted)
    monkeypatch.setattr(Path, "rglob", searched)
    words = ["merge", str(tmp_path / "s"), "-o", str(tmp_path / "m.json"), "--processes", "1"]
    assert in_process(*words).returncode == 0
    assert sorted(asked) == ["failures", "sizes"]
