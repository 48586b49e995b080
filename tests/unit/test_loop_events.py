"""What the loop does now and then: each kind where it is true, and where it only looks so. Steps of 10 ms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from iotrace.analysis.intervals import union
from iotrace.analysis.loop.deliveries import Delivery, Pass
from iotrace.analysis.loop.iterations import ends_with_batches
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import LoopCode, LoopEvents
from iotrace.analysis.rules.recurring import less_writing
from iotrace.analysis.wait import loop_events as loop_events_module
from iotrace.analysis.wait.collector import is_called
from iotrace.analysis.wait.loop_events import (
    CHECKPOINT,
    COLLECTION,
    COMPILATION,
    EVALUATION,
    WRITING,
    Events,
    loop_events,
    summed,
    with_events,
)
from iotrace.session.names import KIND_CHECKPOINT, PAUSE_ROW, PAUSES, TURN_ROW
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import Collector as CollectorLook, StepCall
from iotrace.sources.rows import DTYPES
from tests.support.tables import deliveries_of, steps_of

MS = 1_000_000
TID, OTHER = 7, 8
COUNT = 40
EVERY = 5

SIZES = {"write": 900, "pwrite64": 2 << 20}
Call = tuple[str, float, float, str]  # name, begin and end in ms within a step, file


def program(
    *,
    evaluates: bool = False,
    once: bool = False,
    saves: tuple[tuple[float, float], ...] = (),
    calls: tuple[Call, ...] = (),
    longer_ms: int = 0,
    collects_ms: float = 0.0,
    pause: str = "collection",
    tid: int = TID,
) -> RankAnalysis:
    """40 steps; each fifth one (`once`: the fifth) is longer, and has the evaluation, saves and calls."""
    steps, held, now = [], [], 0
    for number in range(COUNT):
        special = number % EVERY == 0 and (number == EVERY or not once) and number > 0
        end = now + 10 + (longer_ms if special else 0)
        one = Delivery(0, number, 0, 0, number, now * MS, now * MS, TID)
        left_out = (((now + 10) * MS, end * MS),) if special and evaluates else ()
        steps.append(Step(one, now * MS, end * MS, (one,), left_out, 1))
        held += [now] if special else []
        now = end
    spans = np.full(len(held) * len(saves), -1, SPAN_DTYPE)
    where = [(start + begin, start + until) for start in held for begin, until in saves]
    for row, (begin, until) in zip(spans, where, strict=True):
        row["start_ns"], row["duration_ns"] = begin * MS, (until - begin) * MS
        row["kind"], row["tid"] = KIND_CHECKPOINT, tid
    passes = {}
    if evaluates:
        for number, start in enumerate([*held, now + 5]):  # the last one lies behind the last known step
            begin = (start + 10) * MS
            passes[9, number] = Pass(
                begin, begin, begin + 20 * MS, 3, None, (begin + 19 * MS, begin + 20 * MS)
            )
    about = SimpleNamespace(workers=2, persistent_workers=False, wrapped=False, library="")
    deliveries = steps_of(steps).awaited
    given = [Delivery(1, at, 9, at, 0, each.asked_ns, each.asked_ns, TID) for (_, at), each in passes.items()]
    val = SimpleNamespace(
        passes=passes, deliveries=deliveries_of(given), description=about, kind="validation"
    )
    train = SimpleNamespace(passes={}, deliveries=deliveries, description=about, kind="training")
    table = steps_of(steps)
    made = [
        (name, start + begin, start + until, file.format(start))
        for start in held
        for name, begin, until, file in calls
    ]
    session = SimpleNamespace(
        calls_of=lambda _: posix(made, tid),
        paths=SimpleNamespace(shown=lambda path: path),
        posix_on=True,
        telemetry_of=lambda _: None,
    )
    pauses = np.zeros(len(held) if collects_ms else 0, DTYPES[PAUSE_ROW])
    pauses["tid"] = -1 if pause == "collection" else tid
    pauses["pause"] = PAUSES.index(pause)
    pauses["start_ns"] = [(start + 10) * MS for start in held][: len(pauses)]
    pauses["end_ns"] = pauses["start_ns"] + int(collects_ms * MS)
    main = SimpleNamespace(
        pid=TID,
        spans=spans,
        texts={},
        of_type=lambda _: [],
        rows=lambda kind: pauses if kind == PAUSE_ROW else np.empty(0, DTYPES[kind]),
        clock=SimpleNamespace(times_to_session_ns=np.asarray),
    )
    analysis: Any = SimpleNamespace(
        loop=SimpleNamespace(
            steps=table,
            thread=SimpleNamespace(
                tid=TID,
                calls=np.empty((0, 2), np.int64),
                called=None,
                rounds=SimpleNamespace(times_ns=np.empty(0, np.int64)),
            ),
        ),
        kept=table,
        loaders=[train, val],
        primary=train,
        rank=SimpleNamespace(main=main),
        session=session,
    )
    return cast(RankAnalysis, analysis)


def posix(calls: list[Any], tid: int) -> PosixCalls:
    known, files = (sorted({call[at] for call in calls}) for at in (0, 3))
    columns: dict[str, Any] = {name: np.full(len(calls), -1, np.int64) for name in COLUMNS}
    columns["start_ns"] = np.array([int(call[1] * MS) for call in calls], np.int64)
    columns["end_ns"] = np.array([int(call[2] * MS) for call in calls], np.int64)
    columns["name"] = np.array([known.index(call[0]) for call in calls], np.int64)
    columns["tid"] = np.full(len(calls), tid)
    columns["result"] = np.array([SIZES.get(call[0], -1) for call in calls], np.int64)
    columns["file"] = np.array([files.index(call[3]) for call in calls], np.int64)
    return PosixCalls(**columns, names=known, files=files, nodes=[], pids=frozenset(), problems=[])


def only(analysis: RankAnalysis, kind: str) -> tuple[Events, LoopEvents]:
    (events,) = loop_events(analysis)
    (row,) = summed(analysis, [events])
    assert events.kind == row.kind == kind
    return events, row


def test_evaluations_are_one_kind_and_count_behind_the_last_step() -> None:
    events, row = only(program(evaluates=True, longer_ms=20), EVALUATION)
    assert (events.count, events.total_ns) == (8, 8 * 20 * MS)
    assert (row.count, row.seconds, row.every_steps) == (8, pytest.approx(0.16), 5.0)
    assert row.recurs
    assert row.workers == 2
    assert row.loop_fraction == pytest.approx(row.seconds / row.loop_seconds)


def test_the_loop_is_as_long_as_in_the_account_and_without_the_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis = program(evaluates=True, longer_ms=20)
    (events,) = loop_events(analysis)
    first = union(events.starts[:1], events.starts[:1] + 15 * MS)
    iterations = SimpleNamespace(when=lambda _: first)
    monkeypatch.setattr(loop_events_module, "iterations_of", lambda _: iterations)
    (row,) = summed(analysis, [events], cast(Any, SimpleNamespace(loop_ns=300 * MS)))
    assert (row.count, row.seconds, row.loop_seconds) == (8, pytest.approx(0.145), 0.3)


@pytest.mark.parametrize(
    ("behind_ms", "told"),
    [
        ((60, 60, 0), True),
        ((60, 60, 50), False),  # the loop went on: a pass that was begun, a call that trains
        ((3, 3, 0), False),  # nothing much follows
    ],
)
def test_the_last_evaluation_may_have_its_batches_alone(behind_ms: tuple[int, ...], told: bool) -> None:
    starts = np.array([0, 500, 1000], np.int64) * MS
    passes_ns = starts + 100 * MS
    assert ends_with_batches((starts, passes_ns + np.array(behind_ms) * MS), passes_ns) is told


def test_what_happens_once_does_not_recur() -> None:
    analysis = program(evaluates=True, longer_ms=20, once=True)
    analysis.loaders[1].passes.pop((9, 1))
    events, row = only(analysis, EVALUATION)
    assert (events.count, row.every_steps, row.recurs) == (1, None, False)


SAVED: tuple[Call, ...] = (
    ("open", 2.0, 2.1, "ck.tmp"),
    ("write", 3.0, 3.1, "ck.tmp"),
    ("close", 41.0, 42.0, "ck.tmp"),
)


def test_a_checkpoint_lasts_while_its_file_is_open() -> None:
    """As slow storage writes at the closing, whatever file object stands before it."""
    events, row = only(program(saves=((2.5, 4.0),), calls=SAVED, longer_ms=50), CHECKPOINT)
    assert (events.count, events.total_ns) == (7, 7 * 40 * MS)
    assert (row.file, row.bytes, row.every_steps) == ("ck.tmp", 7 * 900, 5.0)


def test_a_checkpoint_lasts_until_the_older_one_is_removed() -> None:
    calls = (*SAVED, ("unlink", 43.0, 47.0, "old.ckpt"))
    events, row = only(program(saves=((2.5, 4.0),), calls=calls, longer_ms=60), CHECKPOINT)
    assert (events.count, events.total_ns) == (7, 7 * 45 * MS)
    assert (row.file, row.bytes) == ("ck.tmp", 7 * 900)


def test_a_burst_of_quick_calls_may_hold_the_opening() -> None:
    calls: tuple[Call, ...] = (("metadata", 2.0, 2.1, "ck.tmp"), *SAVED[1:])
    events, _ = only(program(saves=((2.5, 4.0),), calls=calls, longer_ms=50), CHECKPOINT)
    assert events.total_ns == 7 * 40 * MS


def test_what_syncs_and_renames_a_checkpoint_belongs_to_it() -> None:
    ends: tuple[Call, ...] = (("fsync", 43.0, 50.0, "ck.tmp"), ("rename", 51.0, 52.0, "ck.tmp"))
    events, _ = only(program(saves=((2.5, 4.0),), calls=(*SAVED, *ends), longer_ms=50), CHECKPOINT)
    assert events.total_ns == 7 * 50 * MS


def test_a_file_that_is_written_without_a_save_is_no_checkpoint() -> None:
    kinds = {events.kind for events in loop_events(program(calls=SAVED, longer_ms=50))}
    assert CHECKPOINT not in kinds


def test_what_another_thread_saves_costs_the_loop_nothing() -> None:
    assert loop_events(program(saves=((2.5, 4.0),), calls=SAVED, longer_ms=50, tid=OTHER)) == []


def test_a_file_that_is_opened_anew_counts_from_its_opening_to_its_closing() -> None:
    events, row = only(program(calls=SAVED, longer_ms=50), WRITING)
    assert (events.total_ns, row.reopened, row.file) == (7 * 40 * MS, True, "ck.tmp")
    assert row.said.startswith("ck.tmp is opened and written anew in 7 steps, one in 5: that took 0.3 of")


def test_files_of_one_kind_are_written_and_none_is_written_anew() -> None:
    """Large as they are, such as previews: no call saved, and no name says that they are checkpoints."""
    calls: tuple[Call, ...] = (
        ("open", 2.0, 2.1, "p/{}.png"),
        ("pwrite64", 3.0, 4.0, "p/{}.png"),
        ("close", 41.0, 42.0, "p/{}.png"),
        ("open", 43.0, 43.1, "run.log"),
        ("write", 43.2, 43.3, "run.log"),
        ("close", 43.4, 43.5, "run.log"),
    )
    _, row = only(program(calls=calls, longer_ms=50), WRITING)
    assert (row.reopened, row.file, row.files, row.bytes) == (True, "p/*.png", 7, 7 * (2 << 20))
    assert row.said.startswith("writing took 0.3 of the loop's")
    assert ": 7 times, every 5 steps, 14.0 MiB to p/*.png" in row.said
    assert row.call_seconds == pytest.approx(7 * 2.4e-3)
    assert row.said.endswith("; 0.02 s of it in calls on files: the rest makes what is written")


def test_of_two_files_that_are_written_anew_none_is_charged_with_the_others_time() -> None:
    calls: tuple[Call, ...] = tuple(
        (call, start + at, end + at, f"run/{name}")
        for at, name in ((0.0, "metrics.csv"), (25.0, "hparams.yaml"))
        for call, start, end in (("open", 2.0, 2.1), ("write", 3.0, 20.0), ("close", 22.0, 23.0))
    )
    _, row = only(program(calls=calls, longer_ms=50), WRITING)
    assert (row.reopened, row.file, row.files) == (True, "run/*", 2)
    assert row.said.startswith("writing took 0.3 of the loop's")
    assert less_writing(row) == "write the files in run/ less often, or in a thread"


def test_what_is_saved_to_memory_and_written_is_one_checkpoint() -> None:
    calls: tuple[Call, ...] = (("pwrite64", 20.0, 30.0, "run/{}.zst"),)
    events, row = only(program(saves=((2.0, 8.0),), calls=calls, longer_ms=50), CHECKPOINT)
    assert (row.count, row.bytes, row.file, row.files) == (7, 7 * (2 << 20), "run/*.zst", 7)
    assert events.total_ns == 7 * 16 * MS


def test_a_file_that_stays_open_over_steps_costs_its_calls_alone() -> None:
    logged = ("write", 3.0, 5.0, "run.log")
    calls: tuple[Call, ...] = (("open", 2.0, 2.1, "run.log"), logged, ("close", 66.0, 67.0, "run.log"))
    events, row = only(program(calls=calls, longer_ms=50), WRITING)
    assert (row.reopened, events.seen_ns) == (False, 7 * 2 * MS)


SYNCED: tuple[Call, ...] = (("write", 2.0, 2.1, "run.log"), ("fsync", 2.2, 3.2, "run.log"))


def test_steps_that_sync_and_are_longer_count_whole() -> None:
    events, row = only(program(calls=SYNCED, longer_ms=50), WRITING)
    # 1.1 ms in the calls; and what each of the seven steps is longer beyond that.
    assert events.seen_ns == pytest.approx(7 * 1.1 * MS)
    assert events.total_ns == pytest.approx(7 * 50 * MS)
    assert row.file == "run.log"
    assert row.over_ms_each == pytest.approx(48.9)


def test_steps_that_sync_and_are_as_long_as_others_cost_the_calls_alone() -> None:
    events, _ = only(program(calls=SYNCED), WRITING)
    assert events.total_ns == events.seen_ns


def test_long_steps_with_nothing_of_these_are_none() -> None:
    assert loop_events(program(longer_ms=50)) == []


def test_collections_count_in_all_however_short_each_is() -> None:
    events, row = only(program(longer_ms=5, collects_ms=4.0), COLLECTION)
    assert (events.count, row.seconds) == (7, pytest.approx(0.028))
    assert "Python's garbage collection" in row.said


def look(at_ms: int, collections: list[int], **counted: int) -> CollectorLook:
    settings: dict[str, Any] = {"enabled": True, "threshold": [700, 10, 10]}
    return CollectorLook(mono_ns=at_ms * MS, collections=collections, **settings, **counted)


def test_what_the_collector_is_like_and_how_often_it_collects() -> None:
    analysis = program(longer_ms=5, collects_ms=4.0)
    first = look(0, [100, 10, 1])
    counted = look(205, [200, 20, 3], objects=49_000, frozen=1_300_000)
    for looks, per_step, full in (
        ([first, counted], 112 / 19, 2 / 19),
        ([first, counted, look(9_000, [300, 30, 5])], 112 / 19, 2 / 19),  # behind the loop
        ([first, counted, look(305, [290, 30, 6])], 215 / 28, 5 / 28),  # collections are counted until then
        ([first, look(305, [290, 30, 6])], None, None),  # objects never were
        ([counted], None, None),
        ([first], None, None),
        ([], None, None),
    ):
        analysis.rank.main.of_type = lambda _, looks=looks: looks  # type: ignore[method-assign, misc]
        _, row = only(analysis, COLLECTION)
        if counted in looks:
            assert row.collector is not None
            assert (row.collector.objects, row.collector.frozen) == (49_000, 1_300_000)
            assert (row.collector.threshold, row.collector.enabled) == (700, True)
            assert row.collector.per_step == (per_step and pytest.approx(per_step))
            assert row.collector.full_per_step == (full and pytest.approx(full))
        else:
            assert row.collector is None


@pytest.mark.parametrize(("pause", "compiler"), [("jit", "jax.jit"), ("compilation", "torch.compile")])
def test_what_is_compiled_in_the_loop_is_told_with_how_often_and_how_late(pause: str, compiler: str) -> None:
    events, row = only(program(longer_ms=5, collects_ms=4.0, pause=pause), COMPILATION)
    assert (events.count, row.seconds) == (7, pytest.approx(0.028))
    # Steps 5, 10 .. 35 of 40.
    assert (row.late, row.compiler, row.function) == (4, compiler, None)
    assert row.said.startswith("compiling took 0.0 of the loop's 0.4 s")


def test_what_another_thread_compiles_is_no_event_of_the_loop() -> None:
    assert loop_events(program(longer_ms=5, collects_ms=4.0, pause="jit", tid=OTHER)) == []


def test_the_compiled_function_is_that_in_whose_calls_it_lies() -> None:
    analysis = program(longer_ms=5, collects_ms=4.0, pause="jit")
    main: Any = analysis.rank.main
    pauses = main.rows(PAUSE_ROW)
    sites = [
        StepCall(number, called, "fit.py", 9 + number, 1, [], "", 0, kind)
        for number, (called, kind) in enumerate([("evaluate", "computes"), ("step", "trains")])
    ]
    main.of_type = lambda kind: sites if kind is StepCall else []
    for own, named in ((len(pauses), "step (fit.py:10)"), (3, None)):
        turns = np.zeros(own, DTYPES[TURN_ROW])
        turns["site"] = 1
        turns["start_ns"], turns["end_ns"] = pauses["start_ns"][:own], pauses["end_ns"][:own]
        main.rows = lambda kind, turns=turns: {PAUSE_ROW: pauses, TURN_ROW: turns}.get(
            kind, np.empty(0, DTYPES[kind])
        )
        _, row = only(analysis, COMPILATION)
        assert row.function == named


def test_little_garbage_is_told_by_slow_steps_alone() -> None:
    assert loop_events(program(longer_ms=5, collects_ms=1.0)) == []


@pytest.mark.parametrize(
    ("per_step", "full_per_step", "called"),
    [
        (1.0, 1.0, True),  # each step calls it
        (0.1, 0.1, True),  # each tenth, and the loop makes few objects
        (8.5, 0.05, False),  # the collector itself: one in a hundred is a full one
        (8.5, 0.1, False),
        (0.01, 0.01, False),  # too few
        (None, None, None),
    ],
)
def test_more_full_collections_than_the_collector_makes_are_the_programs(
    per_step: float | None, full_per_step: float | None, called: bool | None
) -> None:
    assert is_called([700, 10, 10], per_step, full_per_step, 100) is called


def test_what_a_function_writes_and_collects_is_beside_its_own_time() -> None:
    """Its calls are more than those that samples outside of that show: they are not counted then."""
    loop = {"count": 20, "loop_seconds": 20.0, "loop_fraction": 0.2}
    writing = LoopEvents(kind="writing", seconds=4.0, function="display (a.py:9)", **loop)
    collecting = LoopEvents(kind="collection", seconds=2.0, function="display (a.py:9)", **loop)
    elsewhere = LoopEvents(kind="writing", seconds=8.0, function="log (a.py:2)", **loop)
    own = LoopCode(
        function="display (a.py:9)", seconds=4.0, samples=80, ms_per_step=40.0, loop_fraction=0.2, count=9
    )
    (found,) = with_events([own], [writing, collecting, elsewhere])
    assert (found.inside_seconds, found.most_fraction) == (6.0, pytest.approx(0.5))
    assert found.said.endswith("20.0 s; up to 10.0 s with the writing and garbage collection in it")
    (alone,) = with_events([own], [elsewhere])
    assert alone.said == "display (a.py:9) took 4.0 of the loop's 20.0 s: 9 times"
