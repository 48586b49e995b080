"""The account of a run: each instant has one part; what verdicts and comparisons make of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.compare.basis import DataWait as ComparedWait, Rank, Steps, System
from iotrace.analysis.compare.whole_run import whole_run, whole_text
from iotrace.analysis.intervals import union
from iotrace.analysis.loop import iterations
from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Pass
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    BAD,
    OK,
    Account,
    AccountPart,
    DataWait,
    HostUse,
    LoaderResult,
    LoopCode,
    LoopEvents,
    RankReport,
    SamplerWork,
    SpawnedWorkers,
    Trust,
)
from iotrace.analysis.verdict.loop_costs import loop_costs
from iotrace.analysis.wait import account as account_module
from iotrace.analysis.wait.account import account_of
from iotrace.analysis.wait.checkpoints import Saves
from iotrace.report.words import account_facts
from iotrace.sources.records import End, IteratorMade, IteratorStart, TorchWindow, WorkersEnded
from iotrace.units import shared_out
from tests.support.results import unknown
from tests.support.tables import deliveries_of, steps_of

MS, TID = 1_000_000, 7
EPOCH_MS, STEPS = 200, 4  # of each epoch: made in 30, first batch after 20, then steps of 25, ended in 10


def pass_of(epoch: int) -> tuple[int, Pass]:
    start = 1000 + EPOCH_MS * epoch
    made = start + 30
    exhausted = ((start + 150) * MS, (start + 160) * MS)
    return start, Pass((start + 10) * MS, made * MS, exhausted[1], STEPS, None, exhausted)


def run_of(*, workers: int = 2, persistent: bool = False, epochs: int = 2, posix: bool = True) -> Any:
    """A rank of two epochs of four batches, the process begun at 0 and ended at 2 s."""
    about = IteratorStart(
        iterator=0,
        loader=0,
        dataset="Rows",
        workers=workers,
        epoch=0,
        generation=0,
        mono_ns=0,
        persistent_workers=persistent,
    )
    passes, deliveries, records = {}, [], []
    for epoch in range(epochs):
        start, each = pass_of(epoch)
        passes[epoch, epoch] = each
        records += [
            IteratorMade(iterator=epoch, tid=TID, start_ns=start * MS, duration_ns=30 * MS),
            WorkersEnded(iterator=epoch, tid=TID, start_ns=(start + 152) * MS, duration_ns=6 * MS),
        ]
        for index in range(STEPS):
            asked = start + 30 + 30 * index
            wait = 20 if index == 0 else 5  # the first worker was up 8 ms after it was asked
            deliveries.append(
                Delivery(
                    0,
                    len(deliveries),
                    epoch,
                    epoch,
                    index,
                    asked * MS,
                    (asked + wait) * MS,
                    TID,
                    followed_by_backward=True,
                    up_ns=(start + 38) * MS,
                )
            )
    steps = [Step(one, one.delivered_ns, other.delivered_ns, (other,)) for one, other in pairwise(deliveries)]
    loader = LoaderRun(0, about, deliveries_of(deliveries), passes)
    records.append(End(mono_ns=2000 * MS))
    main = SimpleNamespace(
        pid=TID,
        began_ns=0,
        arrays={},
        identity=SimpleNamespace(clock=(0, 0, 0)),
        clock=SimpleNamespace(
            to_session_ns=lambda ns: ns, times_to_session_ns=lambda times: np.array(times, np.int64)
        ),
        of_type=lambda kind: [record for record in records if isinstance(record, kind)],
    )
    thread = SimpleNamespace(
        tid=TID,
        asked=loader.deliveries,
        handed=deliveries_of([]),
        rounds=SimpleNamespace(times_ns=np.empty(0, np.int64)),
    )
    return SimpleNamespace(
        loaders=[loader],
        primary=loader,
        startup=None,
        rank=SimpleNamespace(main=main, workers=[]),
        loop=SimpleNamespace(steps=steps_of(steps), thread=thread, unknown_why="", marked=False),
        phase_spans={"start_ns": np.empty(0, np.int64)},
        session=SimpleNamespace(posix_on=posix),
    )


def account(
    monkeypatch: pytest.MonkeyPatch,
    wrote: tuple[float, float] = (0, 0),
    saved: Sequence[tuple[int, int]] = (),
    **settings: Any,
) -> Account:
    saves = union(*np.array(saved, np.int64).reshape(-1, 2).T * MS)
    written = union(*(np.array([int(ms * MS)], np.int64) for ms in wrote))
    monkeypatch.setattr(account_module, "saves_of", lambda _: Saves(*saves, [], []))
    monkeypatch.setattr(account_module, "writes_of", lambda _: written)
    found = account_of(cast(RankAnalysis, run_of(**settings)))
    assert found is not None
    assert sum(part.ns or 0 for part in found.parts) == found.whole_ns == 2000 * MS
    assert sum(part.share_pct or 0 for part in found.parts) == pytest.approx(100)
    return found


def ms_of(found: Account) -> dict[str, float | None]:
    return {part.name: None if part.ns is None else part.ns / MS for part in found.parts}


def test_each_instant_has_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ms_of(account(monkeypatch))
    # To 1050 the first batch; made from 1000, its worker up at 1038. At 1350 the loop asks in vain.
    assert parts["first start"] == 38
    assert parts["start-up"] == 1050 - 38
    assert parts["iterators"] == 10 + 38  # the first is ended, the second made
    assert parts["first batches"] == 12
    assert parts["waits"] == 2 * 3 * 5
    assert parts["training"] == 300 - 48 - 12 - 30
    assert parts["end"] == 650


@pytest.mark.parametrize(("ended", "iterators"), [(False, 48 + 10 + 640), (True, 48)])
def test_what_was_begun_when_the_process_was_killed_is_under_way(
    monkeypatch: pytest.MonkeyPatch, ended: bool, iterators: int
) -> None:
    def killed(make: Any = run_of) -> Any:
        run = make()
        main, loader = run.rank.main, run.loaders[0]
        of_type = main.of_type
        main.of_type = lambda kind: [] if kind is End and not ended else of_type(kind)
        main.identity.clock = (2000 * MS, 0, 0)  # last heard of
        start_ns = 1360 * MS  # with the second epoch's end
        loader.passes[2, 2] = Pass(start_ns, start_ns, start_ns, 0, None, None, TID)
        return run

    monkeypatch.setattr(sys.modules[__name__], "run_of", killed)
    parts = ms_of(account(monkeypatch))
    assert parts["end"] == (650 if ended else 0)
    assert parts["iterators"] == iterators
    assert parts["training"] == 210


def test_what_is_written_in_the_loop_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    without, with_it = (ms_of(account(monkeypatch, wrote)) for wrote in ((0, 0), (1051, 1055)))
    assert with_it["writing"] == 4
    assert with_it["training"] == (without["training"] or 0) - 4


def test_a_checkpoint_of_several_files_is_one_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found = account(monkeypatch, saved=((1056, 1060), (1062, 1063), (1080, 1082)))
    (part,) = (each for each in found.parts if each.name == "checkpoints")
    assert (part.ns, part.times) == (7 * MS, 2)


def test_the_profilers_start_and_end_in_the_call_for_a_batch_are_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def profiled(make: Any = run_of) -> Any:
        run = make()
        of_type = run.rank.main.of_type
        window = TorchWindow(window=0, event="active", mono_ns=1051 * MS, duration_ns=6 * MS)
        run.rank.main.of_type = lambda kind: [window] if kind is TorchWindow else of_type(kind)
        return run

    monkeypatch.setattr(sys.modules[__name__], "run_of", profiled)
    parts = ms_of(account(monkeypatch))
    assert (parts["profiler"], parts["training"]) == (6, 210 - 6)


def test_what_is_not_traced_is_unknown_and_in_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ms_of(account(monkeypatch, (1051, 1055), posix=False))
    assert parts["checkpoints"] is None
    assert parts["writing"] is None
    assert parts["training"] == 210


@pytest.mark.parametrize(("forward_ms", "skipped"), [([], (114, 12)), ([1050], (0, 0)), ([1132], (114, 12))])
def test_batches_that_are_taken_and_not_trained_on_are_skipped(
    monkeypatch: pytest.MonkeyPatch, forward_ms: list[int], skipped: tuple[int, int]
) -> None:
    """One is asked for each 10 ms; the first step has 13 of them, and the model is called on the last one."""

    def skipping(make: Any = run_of) -> Any:
        run = make(epochs=1, workers=0)
        batches = [
            Delivery(0, index, 0, 0, index, (1000 + 10 * index) * MS, (1004 + 10 * index) * MS, TID)
            for index in range(20)
        ]
        first = Step(batches[0], batches[0].delivered_ns, batches[13].delivered_ns, tuple(batches[1:14]))
        rest = [
            Step(one, one.delivered_ns, other.delivered_ns, (other,)) for one, other in pairwise(batches[13:])
        ]
        run.loop.steps = steps_of([first, *rest])
        run.loop.thread.asked = deliveries_of(batches)
        run.phase_spans = {"start_ns": np.array(forward_ms, np.int64) * MS}
        return run

    monkeypatch.setattr(sys.modules[__name__], "run_of", skipping)
    (part,) = (each for each in account(monkeypatch).parts if each.name == "skipped batches")
    assert ((part.ns or 0) / MS, part.times) == skipped


def test_without_workers_an_iterator_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = account(monkeypatch, workers=0)
    parts = ms_of(found)
    assert parts["first start"] == parts["iterators"] == parts["first batches"] == 0
    assert parts["waits"] == 2 * 3 * 5 + 20  # the first batch of all is of the start-up
    assert (found.iterators, found.workers_started) == (0, 0)


@pytest.mark.parametrize(("persistent", "started"), [(False, 2), (True, 0)])
def test_workers_that_persist_are_not_started_anew(
    monkeypatch: pytest.MonkeyPatch, persistent: bool, started: int
) -> None:
    found = account(monkeypatch, persistent=persistent)
    assert (found.iterators, found.workers_started, found.restarted) == (1, started, started // 2)


def test_shares_sum_to_the_whole() -> None:
    assert shared_out(82, [795, 26]) == [79, 3]
    assert shared_out(100, [1, 1, 1]) == [34, 33, 33]


def test_no_step_is_no_account() -> None:
    analysis = run_of()
    analysis.loop.steps = steps_of([])
    assert account_of(analysis) is None


# What is said of an account.

S = 1_000_000_000
NAMES = ("start-up", "first start", "training", "waits", "first batches", "iterators", "sampling", "end")


def made(spawned: SpawnedWorkers | None = None, started: int = 4, **seconds: float) -> Account:
    """An account of 100 steps with these parts, underscores for spaces."""
    known = {name.replace("_", " "): int(value * S) for name, value in seconds.items()}
    known["start-up"] = known.pop("start up", 0)
    parts = [
        AccountPart(name=name, in_loop=name not in ("start-up", "first start", "end"), ns=known.get(name, 0))
        for name in (*NAMES, "validation", "validation iterators", "checkpoints")
    ]
    loop_ns = sum(part.ns or 0 for part in parts if part.in_loop)
    restarts_ns = known.get("iterators", 0) + known.get("validation iterators", 0)
    cost_ns = restarts_ns + known.get("waits", 0) + known.get("first batches", 0)
    return Account(
        whole_ns=sum(part.ns or 0 for part in parts),
        loop_ns=loop_ns,
        steps=100,
        parts=parts,
        loader_pct=100 * cost_ns / loop_ns,
        restarts_pct=100 * restarts_ns / loop_ns,
        iterators=2,
        restarted=2 if started else 0,
        workers_started=started,
        spawned=spawned,
    )


def spawned_workers(import_s: float, needed_s: float) -> SpawnedWorkers:
    return SpawnedWorkers(
        count=2,
        script="/job/train.py",
        import_ns=int(import_s * S),
        needed_ns=int(needed_s * S),
        unpickle_ns=0,
        pickle_ns=0,
        pickled_bytes=0,
    )


def rank_of(found: Account) -> RankReport:
    return unknown(RankReport, rank=0, account=found, data_wait=DataWait())


def with_validations(**seconds: float) -> Account:
    """Nine iterators of training, of 2 workers each, and nine of validation, of one."""
    found = made(**seconds)
    times = {"iterators": 9, "validation iterators": 9}
    parts = [replace(part, times=times.get(part.name)) for part in found.parts]
    counts = {"iterators": 18, "restarted": 18, "workers_started": 27, "validation_workers_started": 9}
    return replace(found, parts=parts, validation_first_batches_ns=int(0.3 * S), **counts)


def test_iterators_of_training_and_of_validation_are_no_mean_of_each_other() -> None:
    def told(**seconds: float) -> str:
        known: list[dict[str, Any]] = [
            {"kind": "training", "primary": True, "first_file": "train.jsonl", "first_file_ms": 1800.0},
            {"kind": "validation", "first_file": "val.jsonl", "first_file_ms": 30.0},
        ]
        known[0]["first_code"] = "load (t.py:3)"
        loaders = [unknown(LoaderResult, **{"primary": False, **each}) for each in known]
        costs = loop_costs(replace(rank_of(with_validations(**seconds)), loaders=loaders))
        assert costs is not None
        return costs.why

    assert told(training=9, first_batches=15, iterators=2.25, validation_iterators=1) == (
        "9 iterators of training made anew, with 18 new workers: the first batch of each takes 1.67 s, the "
        "rest 250 ms an iterator; each worker works with train.jsonl for 1.8 s in its first sample, in no "
        "other, in load (t.py:3)"
    )
    assert told(training=9, first_batches=1, iterators=1, validation_iterators=9.3) == (
        "9 iterators of validation made anew, with 9 new workers: 1 s an iterator; each worker works with "
        "val.jsonl for 30 ms in its first sample, in no other"
    )


def test_a_verdict_tells_what_starting_workers_costs_the_loop() -> None:
    costs = loop_costs(rank_of(made(training=14, waits=1, iterators=85)))
    assert costs is not None
    assert costs.text == "86 % of the loop: 85 % starting workers each epoch, 1 % waiting for batches"
    assert costs.fraction == 0.86
    assert costs.why == "2 iterators made anew, with 4 new workers: 42.5 s an iterator"
    known: dict[str, Any] = {"primary": True, "start_code": "load (t.py:3)", "start_code_ms": 40_000.0}
    loaders = [unknown(LoaderResult, **known)]
    costs = loop_costs(replace(rank_of(made(training=14, waits=1, iterators=85)), loaders=loaders))
    assert costs is not None
    assert costs.why.endswith(": 42.5 s an iterator; load (t.py:3) takes 40 s in each worker")


def test_a_verdict_tells_what_a_sampler_and_data_built_anew_cost_the_loop() -> None:
    works = SamplerWork(function="Buckets.__iter__ (t.py:9)", passes=5, ms=900.0, files=80.0)
    loaders = [unknown(LoaderResult, primary=True, sampler=works)]
    found = replace(made(training=50, waits=5, iterators=5, sampling=40, started=0), restarts_pct=45.0)
    costs = loop_costs(replace(rank_of(found), loaders=loaders))
    assert costs is not None
    text = "50 % of the loop: 40 % choosing the samples of later epochs, 5 % iterators of persistent workers"
    assert costs.text == f"{text}, 5 % waiting for batches"
    assert (costs.why, costs.cause) == (works.said, "sampling")
    assert (costs.beside, costs.computed) == (0.45, 0.4)
    known: dict[str, Any] = {"function": "rebuilt (t.py:3)", "seconds": 30.0, "samples": 90, "count": 4}
    code = LoopCode(**known, ms_per_step=300.0, loop_fraction=0.3, builds="Rows")
    hardly = made(training=95, waits=4, iterators=1)
    assert loop_costs(rank_of(hardly)) is None
    costs = loop_costs(replace(rank_of(hardly), loop_code=[code]))
    assert costs is not None
    text = "35 % of the loop: 30 % building the data anew, 4 % waiting for batches"
    assert costs.text == f"{text}, 1 % starting workers each epoch"
    assert costs.why == "rebuilt (t.py:3) builds Rows anew, which took 30.0 of the loop's 100.0 s: 4 times"
    assert loop_costs(replace(rank_of(hardly), loop_code=[replace(code, builds=None)])) is None  # a plot


def test_first_batches_of_a_validation_are_no_starts_of_its_workers() -> None:
    """Its workers start quickly, and read an index before their first samples, as the training's do."""
    found = replace(
        made(training=10, first_batches=5, iterators=0.2, validation_iterators=4.8),
        iterators=4,
        restarted=4,
        validation_first_batches_ns=int(4.6 * S),
    )
    costs = loop_costs(rank_of(found))
    assert costs is not None
    assert costs.text == (
        "50 % of the loop: 48 % first batches, 1 % starting workers each epoch, "
        "1 % starting the workers of its validation"
    )
    assert costs.why.endswith("the first batch of each takes 2.4 s, the rest 100 ms an iterator")
    [line] = account_facts(found)
    assert "making iterators of its validation 0.2 s (1 %)" in line
    assert "first batches of its validation 4.6 s (23 %)" in line
    slow = loop_costs(rank_of(replace(found, validation_first_batches_ns=0)))
    assert slow is not None
    assert "24 % starting the workers of its validation" in slow.text


def test_first_batches_of_evaluations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass is an evaluation's: its worker is up after 38 ms, its first batch made 12 ms later."""
    monkeypatch.setattr(
        iterations, "evaluations_of", lambda _: union(np.array([1200 * MS]), np.array([1360 * MS]))
    )
    found = account(monkeypatch)
    assert (found.validation_first_batches_ns, found.part_ns("first batches")) == (12 * MS, 0)
    assert found.first_batches_ns == 12 * MS


def test_a_loop_that_only_waits_is_judged_by_its_steps() -> None:
    assert loop_costs(rank_of(made(training=50, waits=50))) is None
    assert loop_costs(rank_of(made(training=97, iterators=3))) is None


def test_one_epoch_restarts_nothing() -> None:
    found = replace(made(training=2, iterators=1, started=0), iterators=0)
    assert loop_costs(rank_of(found)) is None


def test_a_first_start_counts_where_it_could_be_shorter() -> None:
    found = {
        needed: loop_costs(rank_of(made(spawned_workers(8, needed), training=2, first_start=8)))
        for needed in (2, 8)
    }
    assert found[8] is None  # all of that is torch
    assert found[2] is not None
    assert found[2].text == "80 % of the loop and its start: 80 % starting workers once"
    assert found[2].why == "its workers took 8 s to start; each spawned worker imports train.py again (8 s)"


def test_a_spawned_worker_imports_what_takes_its_time() -> None:
    torch = replace(spawned_workers(8, 7), packages={"torch": 6 * S, "zarr": S}, forkserver=True)
    costs = loop_costs(rank_of(made(torch, training=2, first_start=8)))
    assert costs is not None
    assert costs.why.endswith("each forkserver worker imports torch and zarr again (8 s)")
    script = replace(spawned_workers(8, 2), packages={"torch": 2 * S}, own_ns=6 * S)
    assert script.imports == "train.py"
    scipy = replace(spawned_workers(8, 2), packages={"scipy": 5 * S, "torch": 2 * S}, own_ns=S)
    assert (scipy.imports, scipy.beyond) == ("scipy and torch", "scipy")


def test_the_first_screen_prints_shares_that_sum_to_100() -> None:
    [line] = account_facts(made(start_up=1, first_start=1, training=1, waits=0.02))
    shares = [
        int(part.rpartition("(")[2].removesuffix(" %)")) for part in line.partition(": ")[2].split(" · ")
    ]
    assert sum(shares) == 100
    assert line.startswith("3.0 s: ")
    assert "waits for batches 20 ms (1 %)" in line


# What a comparison makes of two.


def compared(
    one: Account, other: Account, level: str = OK, others: float = 0.0, wrote: tuple[int, int] = (0, 0)
) -> Any:
    host = unknown(HostUse, others_cpu_fraction=others, cpu_busy_fraction=1.0, cpu_saturated_fraction=1.0)
    ranks = [
        Rank(
            0,
            Steps(100, mean_ms=10.0),
            ComparedWait(),
            System(host=host),
            account=each,
            loop_events=[writing_events(times)] if times else [],
        )
        for each, times in zip((one, other), wrote, strict=True)
    ]
    trust = Trust(level=level, reasons=[])
    return whole_run((ranks[0], ranks[1]), (trust, trust))


@pytest.mark.parametrize("level", [OK, BAD])
def test_starts_that_end_decide_a_comparison(level: str) -> None:
    found = compared(made(training=1, first_start=4), made(training=1, first_start=0.1), level)
    assert found.verdict == "faster"
    assert found.step_ms == [50.0, 11.0]
    assert found.starting_ms == [40.0, 1.0]


@pytest.mark.parametrize(
    "after",
    [
        made(training=1, first_start=3),  # such times differ from run to run
        made(training=0.1, first_start=4, waits=0.1),
    ],
)
def test_less_decides_none(after: Account) -> None:
    assert compared(made(training=1, first_start=4), after).verdict is None


def test_a_slower_step_is_told_by_the_steps() -> None:
    assert compared(made(training=1), made(training=9)).verdict is None


def happening(found: Account, name: str, times: int) -> Account:
    parts = [replace(part, times=times) if part.name == name else part for part in found.parts]
    return replace(found, parts=parts, restarted=times)


@pytest.mark.parametrize(
    ("times", "others", "takes", "verdict"),
    [
        (1, 0.0, 0.1, "faster"),
        (9, 0.0, 0.1, "faster"),
        (1, 0.9, 0.7, "faster"),
        (9, 0.9, 0.7, None),
        (9, 0.9, 0.1, "faster"),
    ],
)
def test_what_happens_less_often_decides_whatever_the_steps_do(
    times: int, others: float, takes: float, verdict: str | None
) -> None:
    """Beside neighbours with 90 % of the CPUs it may take ten times as long: then how often has to change."""
    before = happening(made(training=3, checkpoints=6), "checkpoints", 9)
    after = happening(made(training=4, checkpoints=takes), "checkpoints", times)
    found = compared(before, after, others=others)
    assert found.verdict == verdict
    assert found.likely is (verdict is not None and others > 0)
    assert [(each.times, each.unsure) for each in found.changed] == [([9, times], verdict is None)]


def test_workers_started_once_less_are_told_beside_a_first_start_that_is_as_long() -> None:
    before = happening(made(training=12, first_start=35, iterators=30), "iterators", 2)
    after = happening(made(training=15, first_start=37), "iterators", 1)
    found = compared(before, after, others=0.9)
    assert (found.verdict, found.likely) == ("faster", True)
    assert [(each.what, each.times) for each in found.changed] == [("starting workers anew", [2, 1])]


def writing_events(times: int) -> LoopEvents:
    """Each takes 0.1 s."""
    return LoopEvents(
        kind="writing",
        count=times,
        seconds=times / 10,
        loop_seconds=10.0,
        loop_fraction=times / 100,
        file="run.log",
    )


@pytest.mark.parametrize("others", [0.0, 0.9])
def test_a_file_that_is_written_less_often_is_named(others: float) -> None:
    found = compared(made(training=6), made(training=2), others=others, wrote=(40, 0))
    assert (found.verdict, found.likely) == ("faster", others > 0)
    assert [(each.what, each.step_ms, each.times) for each in found.changed] == [
        ("writing run.log", [40.0, 0.0], [40, 0])
    ]


def test_a_part_that_steps_undo_decides_nothing() -> None:
    before = happening(made(training=3, checkpoints=6), "checkpoints", 9)
    after = happening(made(training=9, checkpoints=0.1), "checkpoints", 1)
    assert compared(before, after).verdict is None


def test_a_small_part_is_named_and_decides_nothing() -> None:
    before = happening(made(training=20, checkpoints=1), "checkpoints", 9)
    after = happening(made(training=20), "checkpoints", 0)
    found = compared(before, after)
    assert [(each.what, each.times) for each in found.changed] == [("checkpoints", [9, 0])]
    assert found.verdict is None


@pytest.mark.parametrize("others", [0.0, 0.9])
def test_pickling_for_spawned_workers_is_named_beside_their_start(others: float) -> None:
    """It is a part of their start: it neither counts twice, nor stands for all of it."""
    listed = replace(spawned_workers(4, 4), pickle_ns=7 * S)
    arrays = replace(spawned_workers(4, 4), pickle_ns=S // 100)
    sides = made(listed, training=3, iterators=39), made(arrays, training=3, iterators=20)
    found = compared(*sides, others=others)
    pickled = [each for each in found.changed if each.what == "pickling for spawned workers"]
    assert [each.step_ms for each in pickled] == [[70.0, 0.1]]
    assert found.verdict == "faster"
    assert "of which pickling" not in whole_text("faster", found, [10.0, 10.0], "a step")
    slightly = replace(listed, pickle_ns=int(6.9 * S))
    same = compared(made(listed, training=3, iterators=39), made(slightly, training=3, iterators=20))
    assert "pickling for spawned workers" not in [each.what for each in same.changed]


def test_a_shorter_run_is_not_slower_for_its_first_start() -> None:
    """Workers start once, however many steps follow."""
    before = made(training=30, first_start=2)
    after = replace(made(training=3, first_start=2), steps=10)
    found = compared(before, after)
    assert found.parts_ms["first start"] == [20.0, 20.0]
    assert (found.verdict, found.changed, found.change_pct) == (None, [], 0.0)


def test_validation_is_compared_where_loaders_feed_both() -> None:
    """One that no loader feeds is not recorded: it may be as long, and as often."""
    unseen, seen = made(training=9), happening(made(training=3, validation=6), "validation", 2)
    found = compared(unseen, seen)
    assert (found.changed, "validation" in found.parts_ms) == ([], False)
    restarted = happening(made(training=3, validation=1, validation_iterators=5), "validation iterators", 2)
    names = {each.what for each in compared(restarted, seen).changed}
    assert names == {"validation", "starting workers of its validation and their first batches"}


def test_a_part_that_one_side_does_not_know_is_not_compared() -> None:
    before = made(training=9, checkpoints=6)
    parts = [replace(part, ns=None) if part.name == "checkpoints" else part for part in before.parts]
    assert compared(before, replace(made(training=9), parts=parts)).changed == []
