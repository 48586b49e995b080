"""Slow steps of a loop: each cause where it is true, and where it only looks so. Steps of 10 ms from 0 on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    RankReport,
    Report,
    SessionInfo,
    SlowLoopStep,
    SlowLoopSteps,
    Steps,
)
from iotrace.analysis.wait import slow_loop_steps
from iotrace.analysis.wait.loop_events import EVALUATION, Events
from iotrace.analysis.wait.slow_loop_steps import loop_slow_steps
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.report.blocks import cells_of
from iotrace.report.views.steps import slow_steps as slow_steps_view
from iotrace.report.words import slow_facts, slow_text
from iotrace.session import names
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.rows import DTYPES
from iotrace.sources.telemetry import Series
from iotrace.timeline import build
from tests.support.results import unknown
from tests.support.tables import steps_of, waits_of

MS = 1_000_000
TID = 7
SLOW = 30  # the step that takes 100 ms more

Call = tuple[str, int, int, int, int]  # name, begin and end in ms, thread, bytes


def begin_ms(step: int) -> int:
    return 10 * step + (100 if step > SLOW else 0)


def explained(
    *,
    waited_ms: float = 0.0,
    cause: str = "decode",
    evaluation: bool = False,
    pauses: tuple[tuple[str, int, float, float], ...] = (),
    calls: tuple[Call, ...] = (),
    delay_ms: float = 0.0,
    written: int = 0,
    others: float = 0.0,
    held: bool = False,
    asleep: tuple[tuple[float, float], ...] = (),
    restarts: tuple[tuple[float, float], ...] = (),
    file: str = "ck.pt",
    events: tuple[Events, ...] = (),
    recurring: tuple[int, ...] = (),
    collective: tuple[float, float] = (0.0, 0.0),
    monkeypatch: pytest.MonkeyPatch | None = None,
) -> SlowLoopSteps:
    """The slow ones of 40 steps, of which step `SLOW` took 110 ms; that is when each of these happened."""
    start = begin_ms(SLOW)
    steps, waits = [], []
    for number in range(40):
        begin = begin_ms(number) * MS
        wait = int((waited_ms if number == SLOW else 1.0) * MS)
        one = Delivery(0, number, 0, 0, number, begin, begin + wait, TID)
        left_out = ((begin + wait, begin + wait + 95 * MS),) if evaluation and number == SLOW else ()
        steps.append(Step(one, begin, begin_ms(number + 1) * MS, (one,), left_out, 1))
        causes = {name: wait if name == cause else 0 for name in CAUSES}
        waits.append(Explained(one, causes, {"data/a.h5": [0.0, float(wait), 0.0]}))
    kept, table = steps_of(steps), waits_of(waits)
    rows = {
        names.LOCKED_ROW: [
            (TID, int((start + until) * MS), int((start + until) * MS), int((until - at) * MS), 1)
            for at, until in asleep
        ],
        names.PAUSE_ROW: [
            (names.PAUSES.index(kind), tid, int((start + at) * MS), int((start + until) * MS))
            for kind, tid, at, until in pauses
        ],
        names.ROUND_ROW: [
            (0, 0, TID, begin_ms(number) * MS, 0, int((delay_ms if number > SLOW else 0.0) * MS))
            for number in range(41)
        ],
    }
    clock = SimpleNamespace(times_to_session_ns=lambda times: np.asarray(times, np.int64))
    main = SimpleNamespace(
        pid=TID,
        spans=np.empty(0, SPAN_DTYPE),
        clock=clock,
        rows=lambda kind: np.array(rows.get(kind, []), DTYPES[kind]),
        texts={1: f"{names.SLEEP_AT}:train.py:9"},
        of_type=lambda _: [SimpleNamespace(collections=True)],
    )
    times = np.arange(0, 700, 50) * MS
    grows = np.where(times > (start + 60) * MS, float(written), 0.0)
    held_back = Series(times, np.where(times > start * MS, 1.0, 0.0) * held)
    telemetry = SimpleNamespace(
        host=SimpleNamespace(cpus=[], time_ns=times, quotas={"/job": (held_back, held_back)}),
        process_of=lambda _: SimpleNamespace(series=lambda _: Series(times, grows)),
    )
    if monkeypatch is not None:
        shares = np.full(len(times), others), np.zeros(len(times))
        monkeypatch.setattr(slow_loop_steps, "shares_by_second", lambda *_: shares)
    session = SimpleNamespace(
        manifest=SimpleNamespace(started_ns=0),
        calls_of=lambda _: posix(
            [(name, start + at, start + to, *rest) for name, at, to, *rest in calls], file
        ),
        paths=SimpleNamespace(shown=lambda path: path),
        telemetry_of=lambda _: telemetry,
        posix_on=True,
    )
    thread = SimpleNamespace(tid=TID)
    spans = [(int((start + at) * MS), int((start + until) * MS)) for at, until in restarts]
    passes = [
        SimpleNamespace(start_ns=begun, asked_ns=until, exhausted_ns=None if number else spans[0])
        for number, (begun, until) in enumerate(spans)
    ]
    analysis: Any = SimpleNamespace(
        primary=SimpleNamespace(description=SimpleNamespace(workers=2), passes=dict(enumerate(passes))),
        kept=kept,
        loop=SimpleNamespace(steps=kept, thread=thread, unknown_why=""),
        measured_waits=table,
        waits_for=lambda awaited: table[awaited["number"]],
        collectives=tuple(np.array([int((start + at) * MS)], np.int64) for at in collective),
        rank=SimpleNamespace(main=main),
        session=session,
    )
    begun = np.array([begin_ms(number) * MS for number in recurring], np.int64)
    found = loop_slow_steps(cast(RankAnalysis, analysis), events=events, recurring=begun)
    assert found is not None
    return found


def posix(calls: list[Any], file: str = "ck.pt") -> PosixCalls:
    known = sorted({call[0] for call in calls})
    columns: dict[str, Any] = {name: np.full(len(calls), -1, np.int64) for name in COLUMNS}
    columns["start_ns"] = np.array([call[1] * MS for call in calls], np.int64)
    columns["end_ns"] = np.array([call[2] * MS for call in calls], np.int64)
    columns["name"] = np.array([known.index(call[0]) for call in calls], np.int64)
    columns["tid"] = np.array([call[3] for call in calls], np.int64)
    columns["result"] = np.array([call[4] for call in calls], np.int64)
    columns["file"] = np.zeros(len(calls), np.int64)
    return PosixCalls(**columns, names=known, files=[file], nodes=[], pids=frozenset(), problems=[])


def only(found: SlowLoopSteps) -> SlowLoopStep:
    (step,) = found.steps
    assert step.step == SLOW
    assert step.over_ms == pytest.approx(100.0)
    return step


def test_a_wait_for_another_rank_is_a_collective_not_unexplained() -> None:
    found = explained(collective=(10.0, 105.0))
    assert only(found).parts_ms == {"collectives": pytest.approx(95.0)}
    assert found.unnamed_ms == pytest.approx(5.0)
    assert "waits in collectives 95 %" in slow_text(found)


def test_a_slow_step_is_one_beyond_p95_and_three_deviations() -> None:
    found = explained()
    assert (found.count, found.measured, found.usual_ms, found.beyond_ms) == (1, 40, 10.0, 10.0)
    step = only(found)
    assert step.parts_ms == {}
    assert step.unnamed_ms == pytest.approx(100.0)
    assert found.explained_fraction == 0.0


def test_its_own_wait_explains_it_by_cause_and_file() -> None:
    found = explained(waited_ms=91.0)
    step = only(found)
    assert step.parts_ms == {"decode": pytest.approx(90.0)}
    assert step.file == "data/a.h5"
    assert found.explained_fraction == pytest.approx(0.9)
    assert found.unnamed_ms == pytest.approx(10.0)


def test_workers_that_start_again_explain_it() -> None:
    assert only(explained(waited_ms=101.0, cause="startup")).parts_ms == {"startup": pytest.approx(100.0)}


def test_workers_that_end_and_start_beside_the_wait_explain_it() -> None:
    assert only(explained(restarts=((20, 60), (62, 82)))).parts_ms == {"restart": pytest.approx(60.0)}


def test_a_wait_of_unknown_cause_explains_nothing() -> None:
    found = explained(waited_ms=101.0, cause="unknown")
    assert only(found).parts_ms == {}
    assert found.explained_fraction == 0.0


def test_a_collection_explains_what_it_took() -> None:
    found = explained(pauses=(("collection", -1, 5, 65),))
    step = only(found)
    assert step.parts_ms == {"garbage_collection": pytest.approx(60.0)}
    assert step.unnamed_ms == pytest.approx(40.0)


def test_a_collection_of_another_step_explains_nothing() -> None:
    assert only(explained(pauses=(("collection", -1, -15, -6),))).parts_ms == {}


@pytest.mark.parametrize(("tid", "parts"), [(TID, {"compile": 80.0}), (8, {})])
def test_compiling_explains_it_on_the_training_thread_alone(tid: int, parts: dict[str, float]) -> None:
    assert only(explained(pauses=(("compilation", tid, 5, 85),))).parts_ms == parts


def test_validation_explains_it() -> None:
    found = only(explained(evaluation=True))
    assert found.parts_ms == {"validation": 95.0}
    assert found.ms == 110.0


@pytest.mark.parametrize(("steps", "slow"), [((SLOW,), 1), ((20, SLOW), 0)])
def test_what_recurs_makes_no_step_slow(steps: tuple[int, ...], slow: int) -> None:
    """One evaluation is a slow step; of two each is one of its kind, in whichever step it lies."""
    starts = np.array([(begin_ms(number) + 5) * MS for number in steps])
    lengths = np.array([100 if number == SLOW else 5 for number in steps]) * MS
    events = Events(EVALUATION, starts, starts + lengths, np.array(steps))
    assert explained(evaluation=True, events=(events,)).count == slow


@pytest.mark.parametrize(
    ("tid", "size", "told"), [(TID, 10 << 20, True), (8, 10 << 20, False), (TID, 900, False)]
)
def test_a_checkpoint_is_what_the_training_thread_wrote(tid: int, size: int, told: bool) -> None:
    """Not what another thread wrote meanwhile, nor a line in a log."""
    calls: tuple[Call, ...] = (("write", 10, 40, tid, size // 2), ("write", 60, 70, tid, size - size // 2))
    found = only(explained(calls=calls))
    assert found.parts_ms == ({"checkpoint": 60.0} if told else {})
    assert (found.file, found.write_bytes) == (("ck.pt", size) if told else (None, None))
    if told:
        assert found.write_mb_per_s == pytest.approx(size / 1e6 / 0.06)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("run/step_1.pth", "checkpoint"),
        ("run/step_1.pt.gz.part", "checkpoint"),
        ("checkpoints/3/shard-0", "checkpoint"),
        ("run/step_1.png", "writing"),
        ("run/scripted/predictions.npy", "writing"),
    ],
)
def test_a_large_file_is_a_checkpoint_where_its_name_says_so(file: str, part: str) -> None:
    found = only(explained(calls=(("write", 10, 70, TID, 2 << 20),), file=file))
    assert (found.parts_ms, found.file, found.write_bytes) == ({part: 60.0}, file, 2 << 20)


def test_two_writings_with_a_pause_are_two() -> None:
    """What the thread did for longer between them is no writing."""
    calls: tuple[Call, ...] = (("write", 0, 10, TID, 2 << 20), ("write", 80, 90, TID, 2 << 20))
    assert only(explained(calls=calls)).parts_ms == {"checkpoint": 20.0}


@pytest.mark.parametrize(("written", "told"), [(100 << 20, True), (900, False), (0, False)])
def test_what_c_plus_plus_writes_is_known_by_the_kernels_account(written: int, told: bool) -> None:
    """torch.save shows as an opening and a closing; one for reading writes nothing."""
    calls: tuple[Call, ...] = (("fopen64", 5, 6, TID, -1), ("fclose", 90, 95, TID, -1))
    found = only(explained(calls=calls, written=written))
    assert found.parts_ms == ({"checkpoint": 90.0} if told else {})
    assert found.write_bytes == (written if told else None)


@pytest.mark.parametrize(
    ("others", "held", "part"),
    [(0.5, False, "neighbours"), (0.5, True, "throttling"), (0.0, False, "no_cpu")],
)
def test_waiting_for_a_cpu_has_who_had_it(
    others: float, held: bool, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = only(explained(delay_ms=70.0, others=others, held=held, monkeypatch=monkeypatch))
    assert found.parts_ms == {part: pytest.approx(70.0)}


def test_neighbours_explain_nothing_where_the_thread_never_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(explained(others=0.9, held=True, monkeypatch=monkeypatch)).parts_ms == {}


def test_a_wait_in_which_the_thread_sleeps_for_a_time_is_that_sleep() -> None:
    found = explained(waited_ms=81.0, cause="unknown", asleep=((10, 50), (50, 80)))
    assert only(found).parts_ms["asleep"] == pytest.approx(70.0)


def test_no_part_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection within a wait is the collection's; a thread waits for a CPU in the rest alone.

    It waited in 29 ms that it usually computes in, so what was longer is 109 ms of a step that took 100 more.
    """
    found = explained(
        waited_ms=81.0,
        pauses=(("collection", -1, 10, 40),),
        delay_ms=100.0,
        others=0.5,
        monkeypatch=monkeypatch,
    )
    assert only(found).parts_ms == {
        "garbage_collection": pytest.approx(30.0 * 100 / 109),
        "decode": pytest.approx(50.0 * 100 / 109),
        "neighbours": pytest.approx(29.0 * 100 / 109),
    }
    assert found.explained_fraction == 1.0


def test_the_timeline_names_each_by_its_largest_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: tuple[Call, ...] = (("write", 10, 80, TID, 10 << 20),)
    monkeypatch.setattr(build, "loop_events", lambda _: [])
    monkeypatch.setattr(build, "loop_slow_steps", lambda *_, **__: explained(calls=calls))
    session = SimpleNamespace(manifest=SimpleNamespace(started_ns=0))
    (found,) = build._slow_steps(cast(RankAnalysis, SimpleNamespace(session=session)))
    assert (found.name, found.start_ns, found.end_ns) == ("slow step 30 · checkpoint", 300 * MS, 410 * MS)
    assert found.args is not None
    assert (found.args["file"], found.args["write_bytes"]) == ("ck.pt", 10 << 20)


def test_what_the_loop_calls_now_and_then_is_told_by_itself() -> None:
    found = explained(recurring=(SLOW,))
    assert (found.count, found.apart, found.over_ms) == (0, 1, 0.0)
    other = explained(recurring=(SLOW - 20, SLOW + 5))
    assert (other.count, other.apart) == (1, 0)
    assert "apart from 3 with recurring work of the loop" in slow_text(
        msgspec.structs.replace(other, apart=3)
    )


def test_the_words_begin_with_the_largest_part() -> None:
    found = explained(pauses=(("collection", -1, 5, 65),))
    assert slow_text(found) == (
        "1 of 40 steps was slow, by 100.0 ms in all: garbage collection 60 %, not explained 40 %"
    )
    steps = unknown(Steps, mean_ms=12.5, count=40)
    assert slow_facts(unknown(RankReport, loop_slow_steps=found, steps=steps)) == [slow_text(found)]
    # Below 5 % of the time they are no matter for a first screen.
    steps = unknown(Steps, mean_ms=80.0, count=40)
    assert slow_facts(unknown(RankReport, loop_slow_steps=found, steps=steps)) == []
    assert slow_facts(unknown(RankReport, steps=steps)) == []


def test_the_view_has_a_row_for_each_part() -> None:
    found = explained(calls=(("write", 10, 80, TID, 10 << 20),))
    rank = unknown(RankReport, rank=0, steps=unknown(Steps, count=40), loop_slow_steps=found, slow_steps=[])
    report = unknown(Report, session=unknown(SessionInfo, path="run-1", argv=["train"]), ranks=[rank])
    (table,) = slow_steps_view(report)
    assert cells_of(table) == [
        ["30", "110.0", "100.0", "70.0", "checkpoint", "ck.pt, 10.0 MiB, 150 MB/s"],
        ["30", "110.0", "100.0", "30.0", "not explained", ""],
    ]
    assert table.commands == ["iotrace open run-1 --around 30"]


def test_a_thread_lacks_a_cpu_in_what_it_computes_elsewhere_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 55 ms without a CPU in a step of 110, 66 ms of which it collected garbage: 22 in the other 44."""
    found = explained(
        pauses=(("collection", -1, 10, 76),), delay_ms=55.0, others=0.5, monkeypatch=monkeypatch
    )
    parts = only(found).parts_ms
    assert parts["neighbours"] / parts["garbage_collection"] == pytest.approx(22 / 66, rel=0.05)
