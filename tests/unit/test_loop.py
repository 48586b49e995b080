"""The training loop's steps and waits, for the shapes that loops have: records made by hand.

A shape is a text of events, one a column: `a` a batch of loader a (1 ms of wait), `A` the end of its pass;
`t` training (2 ms: a backward pass and an optimizer's step), `u` a second optimizer's, `v` a backward pass
alone; `.` 1 ms of something else; `q` a wait of 1 ms for another thread, `p` a batch that this thread takes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.loop.steps import Loop, _merged, loop_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.records import (
    Identity,
    IteratorEnd,
    IteratorStart,
)
from iotrace.sources.session import Rank
from tests.support.rows import BatchRecord, Blocked, Exposed, Line, Round, process_of

MS = 1_000_000
MAIN, OTHER = 1, 2
NO_GRAD = "e"  # a loader that is iterated with grad disabled


class Program:
    """Records of a program, made event by event."""

    def __init__(self, anew: str = "") -> None:
        self.records: list[Line] = []
        self.now = 0
        self.rounds = 0
        self.cpu = 0
        self.passes: dict[str, tuple[int, int]] = {}  # by loader: its iterator, its batches so far
        self.iterators = 0
        self.anew = anew

    def play(self, events: str) -> None:
        for event in events:
            getattr(
                self,
                {"t": "train", "u": "again", "v": "backward", ".": "idle", "q": "wait"}.get(event, "ask"),
            )(event)

    def idle(self, _: str) -> None:
        self.now += MS
        self.cpu += MS

    def _round(self, what: str, number: int) -> None:
        self.rounds += what == "backward"
        self.records.append(Round(what, number, MAIN, self.now, self.cpu, 0))

    def train(self, _: str) -> None:
        self.idle("")
        self._round("backward", 0)
        self.idle("")
        self._round("optimizer", 0)

    def again(self, _: str) -> None:
        self.idle("")
        self._round("backward", 0)
        self.idle("")
        self._round("optimizer", 1)

    def backward(self, _: str) -> None:
        self.idle("")
        self._round("backward", 0)

    def wait(self, _: str) -> None:
        self.now += MS
        self.records.append(Blocked(MAIN, self.now - MS, self.now, OTHER))

    def ask(self, event: str) -> None:
        name = event.lower()
        if name not in self.passes:
            loader = self.iterators if name in self.anew else ord(name)
            start = IteratorStart(
                iterator=self.iterators,
                loader=loader,
                dataset=f"D{name}",
                workers=0,
                epoch=0,
                generation=0,
                mono_ns=self.now,
                site=f"{name}:1",
            )
            self.records.append(start)
            self.passes[name] = self.iterators, 0
            self.iterators += 1
        iterator, count = self.passes[name]
        tid = OTHER if name == "p" else MAIN
        began = self.now
        if tid == MAIN:
            self.now += MS
        if event.isupper():
            end = IteratorEnd(iterator, 0, "exhausted", began, self.now, self.rounds, tid)
            self.records.append(end)
            del self.passes[name]
            return
        batch = BatchRecord(
            iterator, 0, 0, count, tid, began, self.now + (tid == OTHER), name != NO_GRAD, self.rounds
        )
        self.records.append(batch)
        self.passes[name] = iterator, count + 1

    def rank(self) -> Rank:
        identity = Identity(format=1, pid=MAIN, ppid=0, role="main", clock=(0, 0, 1))
        return Rank(0, None, 0, process_of(identity, self.records), [])

    def loop(self) -> Loop:
        rank = self.rank()
        return loop_of(rank, loaders_of(rank))


def played(events: str, anew: str = "") -> Loop:
    program = Program(anew)
    program.play(events.replace(" ", ""))
    return program.loop()


@pytest.mark.parametrize(
    ("shape", "begun", "step_ms", "wait_ms"),
    [
        ("at at at at", 4, [3, 3, 3], [1, 1, 1]),
        ("abt abt abt", 3, [4, 4], [2, 2]),  # two loaders feed one step
        ("abt abt bat bat", 4, [4, 5, 4], [2, 3, 2]),  # in changing order
        ("av av avt av av avt", 6, [2, 2, 4, 2, 2], [1, 1, 1, 1, 1]),  # accumulation: a step a micro-batch
        ("aavvt aavvt aavvt", 3, [6, 6], [2, 2]),  # deferred backward: one step
        ("atu atu atu atu", 4, [5, 5, 5], [1, 1, 1]),  # two optimizers
        ("at at atu at at atu", 6, [3, 3, 5, 3, 3], [1, 1, 1, 1, 1]),  # critics
        ("att att att att", 4, [5, 5, 5], [1, 1, 1]),  # each batch is trained on twice
        ("at at eeE at at eeE at", 5, [3, 3, 3, 3], [1, 1, 1, 1]),  # evaluation is no part of a step
        ("at ccC at ccC at", 3, [3, 3], [1, 1]),  # ... with grad mode on, too
        ("a.ct a.ct a.ct", 3, [5, 5], [2, 2]),  # a validation batch in each step is the loop's
        ("at at atA at at atA", 6, [3, 3, 4, 3, 3], [1, 1, 1, 1, 1]),  # epochs: the end is the loop's time
        ("aat at at At", 4, [4, 3, 3], [2, 1, 0]),  # a batch is taken ahead
        ("a a a a", 4, [1, 1, 1], [1, 1, 1]),  # no training: every delivery
        ("atatatatatat bububububububu", 13, [3] * 12, [1] * 12),  # two phases, each with its own optimizer
        ("at at ccC bt bt ccC at bt", 6, [3, 3, 3, 3, 3], [1] * 5),  # one of two loaders a step; evaluation
        ("ttt a. a. a. a.", 4, [2, 2, 2], [1, 1, 1]),  # a warm-up, then a CUDA graph is replayed
        ("at at a. a. a. a. a.", 7, [3, 3, 2, 2, 2, 2], [1] * 6),  # ... warmed up on its batches
        ("aabt aabt aabt", 3, [5, 5], [3, 3]),  # a step that takes several batches of one loader
    ],
)
def test_steps_are_cut_where_the_loop_cuts_them(
    shape: str, begun: int, step_ms: list[int], wait_ms: list[int]
) -> None:
    loop = played(shape)
    assert loop.unknown_why == ""
    assert loop.begun == begun
    assert [step.duration_ns / MS for step in loop.steps] == step_ms
    assert [step.wait_ns / MS for step in loop.steps] == wait_ms


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ("at at at at", 1),
        ("av av avt av av avt av av avt av", 3),  # accumulation
        ("at at atu at at atu at", 1),  # the busiest optimizer's count
        ("aavvt aavvt aavvt aa", 1),
        ("av av av", None),
        ("a a a a", None),
    ],
)
def test_an_update_stands_for_as_many_steps_as_were_begun_since_the_last_one(
    shape: str, steps: float | None
) -> None:
    loop = played(shape)
    assert loop.thread is not None
    end_ns = int(loop.steps["end_ns"][-1])
    assert loop.thread.rounds.steps_to_an_update(loop.steps["start_ns"], end_ns) == steps


def test_a_loader_made_anew_each_epoch_is_one_loader() -> None:
    loop = played("at at atA at at atA at", anew="a")
    assert loop.primary is not None
    assert (loop.primary.epochs, len(loop.primary.deliveries), loop.begun) == (3, 7, 7)
    assert [delivery.epoch for delivery in loop.primary.deliveries] == [0, 0, 0, 1, 1, 1, 2]


def test_batches_that_another_thread_takes_are_waited_for_at_the_hand_over() -> None:
    loop = played("pqt pqt p.t pqt pqt")
    assert loop.unknown_why == ""
    assert loop.begun == 5
    assert [step.wait_ns / MS for step in loop.steps] == [1, 0, 1, 1]


def test_the_wait_is_unknown_where_batches_come_by_a_way_that_is_not_seen() -> None:
    program = Program()
    for _ in range(5):
        program.play("p")
        program.now += MS  # asleep, for whatever
        program.play("t")
    loop = program.loop()
    assert "cannot be seen" in loop.unknown_why
    assert loop.begun == 5


def test_the_wait_of_a_thread_that_never_slept_is_bounded() -> None:
    assert played("p.t p.t p.t p.t").unknown_why.startswith("at most 0 %: another thread takes the batches")


def _fed_by_slots(slept_ms: int) -> Loop:
    """The other thread takes batches and waits for this one, whose own way to get them is not seen."""
    program = Program()
    for _ in range(5):
        program.play("p")
        program.records.append(Blocked(OTHER, program.now, program.now + MS, MAIN))
        program.now += slept_ms * MS
        program.play("..t")
    return program.loop()


def test_a_thread_that_is_only_waited_for_waits_itself_where_it_sleeps() -> None:
    assert "cannot be seen" in _fed_by_slots(slept_ms=2).unknown_why
    ahead = _fed_by_slots(slept_ms=0)
    assert ahead.unknown_why == ""
    assert [step.wait_ns for step in ahead.steps] == [0] * 4


def test_an_ask_that_failed_and_is_made_again_is_one_wait() -> None:
    program = Program()
    for _ in range(3):
        program.play("at")
        iterator, _ = program.passes["a"]
        program.now += 2 * MS
        failed = IteratorEnd(iterator, 0, "OSError", program.now - 2 * MS, program.now, program.rounds, MAIN)
        program.records.append(failed)
    program.play("at")
    loop = program.loop()
    assert [step.wait_ns / MS for step in loop.steps] == [3, 3, 3]
    assert loop.primary is not None
    assert loop.primary.failures == []


def test_the_wait_is_unknown_where_the_loop_trains_on_what_no_loader_delivered() -> None:
    loop = played("at at at at" + "t" * 20)
    assert loop.unknown_why == "the program trained 24 times, and its loaders delivered 4 batches"
    assert loop.begun == 24


def test_a_source_that_wraps_a_loader_is_the_loops_and_has_its_samples_and_idle_times() -> None:
    program = Program()
    for _ in range(4):
        began = program.now
        program.play("aa")
        for record in program.records[-2:]:
            if isinstance(record, BatchRecord):
                record.samples = 8
                program.records.append(Exposed(record.iterator, 0, record.index, MS * 3 // 4))
        wrapping = IteratorStart(
            iterator=900, loader=900, dataset="W", workers=0, epoch=0, generation=0, mono_ns=0, wrapped=True
        )
        batch = BatchRecord(900, 0, 0, 0, MAIN, began, program.now, True, program.rounds)
        program.records += [wrapping, batch]
        program.play("t")
    loop = program.loop()
    assert loop.primary is not None
    assert (loop.primary.description.dataset, loop.begun) == ("W", 4)
    assert [(step.wait_ns / MS, step.samples) for step in loop.steps] == [(2, 16)] * 3
    assert loop.steps.exposed_ns.tolist() == [2 * MS * 3 // 4] * 3  # of the two asks within
    session: Any = None
    assert RankAnalysis(session, program.rank()).within == {ord("a"): 900}
    program.play("at")  # the loop asks it, too
    assert RankAnalysis(session, program.rank()).within == {}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_loaders_that_lie_within_each_other_are_explained(order: str) -> None:
    """Each waits for the other's batches at some time: to explain one asks for the other, and for itself."""
    program = Program()
    for _ in range(4):
        for outer, inner in ("ab", "ba"):
            began = program.now
            program.play(inner)
            program.play(outer)
            asked = program.records[-1]
            assert isinstance(asked, BatchRecord)
            asked.wait_start_ns = began
            program.play("t")
    session: Any = SimpleNamespace(calls_of=lambda process: None, posix_on=False)
    analysis = RankAnalysis(session, program.rank())
    loaders = sorted(analysis.loaders, key=lambda loader: order.index(chr(loader.number)))
    assert analysis.loop.thread is not None
    assert len(analysis.loop.thread.inner.deliveries) == 8
    for loader in loaders:
        waits = analysis.explained(loader)
        assert [sum(item.causes.values()) for item in waits] == [each.wait_ns for each in loader.deliveries]


def test_a_batch_that_another_thread_hands_to_a_wrapping_source_is_part_of_its_ask() -> None:
    program = Program()
    for _ in range(4):
        began = program.now
        program.play("pq")
        wrapping = IteratorStart(
            iterator=900, loader=900, dataset="W", workers=0, epoch=0, generation=0, mono_ns=0, wrapped=True
        )
        program.records += [
            wrapping,
            BatchRecord(900, 0, 0, 0, MAIN, began, program.now, True, program.rounds),
        ]
        program.play("t")
    loop = program.loop()
    assert loop.thread is not None
    assert (loop.begun, loop.thread.handed) == (4, [])
    assert [step.wait_ns / MS for step in loop.steps] == [1] * 3
    assert sorted(loop.thread.inner.number.tolist()) == [0, 1, 2, 3]


def test_evaluations_that_touch_at_a_cut_stay_two() -> None:
    """One of them belongs to the step before the cut, the other to the step behind it."""
    assert _merged([(10, 20), (0, 10), (12, 25), (30, 30)]).tolist() == [[0, 10], [10, 25], [30, 30]]
    assert _merged([]).shape == (0, 2)


def test_a_loop_that_pools_batches_has_its_trainings_as_steps() -> None:
    """A generator takes several batches before it gives one, and at the end gives what it still holds.

    From one delivery to the next the last of these steps would hold all trainings of the pool.
    """
    loop = played("aaaa t at at at at at at tttt at at at at")
    assert loop.unknown_why == "the program trained 15 times, and its loaders delivered 14 batches"
    assert loop.begun == 15
    lengths = [(step.end_ns - step.start_ns) / MS for step in loop.steps]
    assert len(lengths) == 14
    assert max(lengths) <= 3
