"""What tracing may have cost: counting in windows, bounds of the estimate, the report's line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from rich.console import Console

from iotrace.agent.recording.encode import lines_of
from iotrace.analysis.host.overhead import count_inside, following, following_spans, hooks_ns, overhead_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Overhead
from iotrace.report.layout import LABEL_WIDTH, print_blocks
from iotrace.report.terminal import overhead_lines
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, IteratorEnd
from iotrace.sources.session import Rank, open_session
from tests.support.growing import Growing
from tests.support.rows import process_of
from tests.unit.test_loop import MAIN, MS, Program


@given(
    st.lists(st.integers(0, 60), max_size=30),
    st.lists(st.integers(0, 60), max_size=8, unique=True).map(sorted),
)
def test_times_inside_windows_are_counted(times: list[int], bounds: list[int]) -> None:
    windows = list(zip(bounds[::2], bounds[1::2], strict=False))
    expected = sum(any(start <= time < end for start, end in windows) for time in times)
    starts = np.array([start for start, _ in windows], dtype=np.int64)
    ends = np.array([end for _, end in windows], dtype=np.int64)
    assert count_inside(np.array(times, dtype=np.int64), starts, ends) == expected


def test_calls_that_follow_another_of_their_thread_at_once() -> None:
    starts = np.array([0, 10_000, 12_000, 40_000, 41_000], dtype=np.int64)
    tids = np.array([1, 1, 2, 1, 2], dtype=np.int64)
    rest = dict.fromkeys(["pid", "name", "file", "result", "offset", "count", "node"], np.zeros(5, np.int64))
    calls = PosixCalls(
        start_ns=starts,
        end_ns=starts + 5_000,
        tid=tids,
        calls=np.ones(5, np.int64),
        names=[],
        files=[],
        nodes=[],
        pids=frozenset(),
        problems=[],
        **rest,
    )
    assert following(calls).tolist() == [False, True, False, False, False]


def test_spans_that_follow_another_of_their_thread_at_once() -> None:
    spans = np.zeros(6, SPAN_DTYPE)
    spans["tid"] = [1, 1, 1, 2, 1, 1]
    spans["start_ns"] = [0, 100_000, 110_000, 111_000, 200_000, 900_000]
    spans["duration_ns"] = [50_000, 95_000, 5_000, 5_000, 5_000, 0]
    # The third begins inside of the second, soon after it; the fifth soon after that has ended.
    assert following_spans(spans).tolist() == [False, False, True, False, False, False]
    spans["duration_ns"][2] = 85_000
    assert following_spans(spans).tolist() == [False, False, True, False, True, False]


def shown(percent: float | None, calls: int | None, hooks_ms: float = 0.0) -> str:
    output = io.StringIO()
    overhead = Overhead(
        posix_calls=calls,
        spans=10,
        hooks_ms=hooks_ms,
        processes=1,
        posix_call_us=None if calls is None else 3.0,
        next_posix_call_us=None if calls is None else 2.0,
        span_us=1.0,
        process_start_ms=12.0,
        measured_on="here",
        consumer_pct_of_step=percent,
        workers_pct_of_production=None,
        estimated_pct_of_step=percent,
        least_pct_of_step=percent and percent / 2,
    )
    print_blocks(overhead_lines(overhead), Console(file=output, width=80), LABEL_WIDTH)
    return " ".join(output.getvalue().split())


@pytest.mark.parametrize(
    ("percent", "line"),
    [
        (None, ""),
        (0.0, "tracing slowed the steps by less than 0.1 %"),
        (1.9, "tracing slowed the steps by up to 1.9 %"),
    ],
)
def test_a_short_line_where_tracing_cost_little_and_none_where_that_is_unknown(
    percent: float | None, line: str
) -> None:
    assert shown(percent, 5) == line


def test_a_line_with_its_remedy_where_it_may_have_cost_more() -> None:
    assert shown(7.2, 500) == (
        "tracing may itself take 4 to 7 % of the steps: 500 POSIX calls at 2.0 to 3.0 µs; "
        "--io PATH traces fewer, --io off none"
    )
    assert shown(3.0, None) == "tracing may itself take 2 to 3 % of the steps: 10 spans at 1.0 µs"
    assert (
        shown(3.0, None, 12.0)
        == "tracing may itself take 2 to 3 % of the steps: its hooks took 12.0 ms of CPU"
    )
    assert "10 spans" in shown(3.0, None, 0.009)


HOOKED = 7  # a thread


def hooked(*sums: tuple[int, int, int], began_ns: int = 0) -> Process:
    """A process whose hooks took so much so far: a thread, a time in ms, ns."""
    identity = Identity(format=1, pid=MAIN, ppid=0, role="main", clock=(began_ns, 0, 1))
    found = process_of(identity, [], np.zeros(0, SPAN_DTYPE), {})
    rows = [(tid, at_ms * MS, own_ns) for tid, at_ms, own_ns in sums]
    dtype = np.dtype([(field, "<i8") for field in names.ROW_FIELDS[names.OWN_ROW]])
    return replace(found, arrays={names.OWN_ROW: Columns.of(np.array(rows, dtype))})


def hooks(process: Process, windows: list[tuple[int, int]], busy: list[tuple[int, int]] | None = None) -> int:
    starts, ends = (np.array([each[side] * MS for each in windows], np.int64) for side in (0, 1))
    more = None
    if busy is not None:
        more = tuple(np.array([each[side] * MS for each in busy], np.int64) for side in (0, 1))
    return hooks_ns(process, process.rows(names.OWN_ROW), starts, ends, more)


def test_what_hooks_took_is_of_the_time_between_their_sums() -> None:
    process = hooked((HOOKED, 10, 1_000), (HOOKED, 20, 5_000), (8, 20, 100))
    assert hooks(process, [(0, 30)]) == 5_100  # all of it
    assert hooks(process, [(5, 10), (10, 15)]) == 500 + 2_000 + 50
    assert hooks(process, [(20, 30)]) == 0
    assert hooks(process, []) == hooks(hooked(), [(0, 30)]) == 0


def test_a_worker_that_waits_for_an_index_calls_no_hooks() -> None:
    process = hooked((HOOKED, 10, 1_000))
    # Of ten ms it made batches in two: one of them is measured.
    assert hooks(process, [(2, 3)], [(0, 1)]) == 500
    assert hooks(process, [(2, 3)], []) == 1_000
    assert hooks(process, [], []) == 0


def told(path: Path, workers: int, hooks_of_a_batch_ns: int = 0) -> tuple[list[float], float]:
    """Percentages of a run with `workers`, whose two spans a batch cost 4 % of its making, and its waits'."""
    run = Growing(path, workers)
    until_ns = run.record(30)
    run.end()
    if hooks_of_a_batch_ns:
        for each in path.glob(f"{names.PROCESSES}/{run.main + 1}-*/{names.RECORDS}"):
            [line] = lines_of([(names.OWN_ROW, 1, until_ns, 30 * hooks_of_a_batch_ns)], pytest.fail)
            with open(each, "a") as file:
                file.write(f"{line}\n")
    (path / names.COSTS).write_text(json.dumps({"host": "n1", "span_ns": 300_000, "posix_call_ns": 0}))
    session = open_session(path)
    rank = RankAnalysis(session, session.ranks[0])
    found = overhead_of(rank)
    shares = [found.workers_pct_of_production, found.estimated_pct_of_step, found.least_pct_of_step]
    kept = rank.kept
    return [share for share in shares if share is not None], 100 * kept.wait_ns.sum() / kept.duration_ns.sum()


def test_what_lies_in_an_evaluation_is_no_cost_of_the_steps() -> None:
    """Ten spans in each evaluation pass, and one in the step before it: of 0.1 ms each, in steps of 3 ms."""
    program = Program()
    program.play("at" * 20 + "".join("ateeeeE" for _ in range(5)) + "at" * 20)
    ends = [each.mono_ns for each in program.records if isinstance(each, IteratorEnd)]
    starts = [end - (1 + at) * MS // 4 for end in ends for at in range(10)] + [end - 6 * MS for end in ends]
    spans = np.zeros(len(starts), SPAN_DTYPE)
    spans["start_ns"], spans["tid"] = sorted(starts), MAIN
    identity = Identity(format=1, pid=MAIN, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, program.records, spans, {0: "f"}), [])
    none = {name: np.zeros(0, np.int64) for name in COLUMNS}
    calls = PosixCalls(**none, names=[], files=[], nodes=[], pids=frozenset(), problems=[])
    costs = SimpleNamespace(span_ns=100_000, next_span_ns=None, posix_call_ns=0, next_posix_call_ns=0)
    costs.process_start_ns, costs.host = 0, "n1"
    session: Any = SimpleNamespace(costs=costs, posix_on=False, calls_of=lambda _: calls)
    analysis = RankAnalysis(session, rank)
    found, kept = overhead_of(analysis), analysis.kept
    inside = 5 * 100_000
    assert len(kept.passes) == 5
    assert found.consumer_pct_of_step == pytest.approx(100 * inside / int(kept.duration_ns.sum()))
    long_ns = int((kept.passes[:, 1] - kept.passes[:, 0]).sum())
    assert found.evaluation_pct == pytest.approx(100 * 10 * inside / long_ns)


def test_what_tracing_costs_workers_counts_as_far_as_the_loop_waits_for_their_batches(tmp_path: Path) -> None:
    (production, most, least), waits = told(tmp_path / "waits", 1)
    assert (production, most) == (pytest.approx(4), pytest.approx(4))
    assert 0 < least < production * waits / 100
    # Batches lie ready: what is left of the wait is the hand-over, which no faster worker shortens.
    (production, most, least), waits = told(tmp_path / "ready", 3)
    assert (production, least) == (pytest.approx(4), 0)
    assert 0 < most < waits


def test_hooks_that_record_nothing_are_told_of_where_they_cost_much(tmp_path: Path) -> None:
    """Of 15 ms that a batch takes to make 3 ms are of hooks without spans, as of zarr's chunks."""
    (production, most, least), _ = told(tmp_path / "few", 1)
    (dear_production, dear_most, dear_least), waits = told(tmp_path / "many", 1, 3 * MS)
    assert production == pytest.approx(4)
    assert dear_production == pytest.approx(24)
    assert dear_most == pytest.approx(24)
    assert 5 * least < dear_least < dear_production * waits / 100
    assert dear_most > most
