"""What the loop's thread makes of items that it takes from a pool, in a function that the loop asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import FIELDS, Deliveries, LoaderRun
from iotrace.analysis.loop.takers import _from_the_first_take, _one_an_item, of_takers
from iotrace.analysis.loop.turns import own_source
from iotrace.analysis.table import NONE
from iotrace.session.names import KIND_PHASE
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import Identity, IteratorStart, LoopStacks
from iotrace.sources.session import Rank
from tests.support.rows import Round, process_of

MS = 1_000_000
TURNS = 60
# Functions, and stacks in them: the generator that takes, the loop's own line, a function of the loop.
FUNCTIONS = [("train.py", "main", 20), ("train.py", "batches", 10), ("train.py", "augment", 1)]
LOOP, TAKER, AUGMENT = 0, 1, 2
IN_TAKER = [(AUGMENT, 3), (TAKER, 12), (LOOP, 22)]
IN_LOOP = [(AUGMENT, 3), (LOOP, 24)]


def pool(taker_line: int, taken_by: str = "") -> LoaderRun:
    """Items that come at once, every 20 ms."""
    at = np.arange(TURNS) * 20 * MS
    columns: dict[str, Any] = dict.fromkeys(FIELDS, NONE)
    columns |= {
        "number": np.arange(TURNS),
        "index": np.arange(TURNS),
        "wait_start_ns": at,
        "tid": 1,
        "grad": 1,
    }
    columns |= {"delivered_ns": at + MS, "loader": 0, "iterator": 0, "epoch": 0, "followed_by_backward": 1}
    about = IteratorStart(
        iterator=0, loader=0, dataset="load", workers=2, epoch=0, generation=0, mono_ns=0, wrapped=True,
        site="train.py:11", pool="Pool", taker="batches", taker_line=taker_line,
        taken_by=taken_by,
    )  # fmt: skip
    return LoaderRun(0, about, Deliveries(Columns(TURNS, columns), {}))


def found(stack: list[tuple[int, int]], taker_line: int = 10) -> list[LoaderRun]:
    """Sample a loop in `stack` each ms from the item to the forward pass, 13 ms behind it."""
    times = [turn * 20 * MS + ms * MS for turn in range(TURNS) for ms in range(2, 14)]
    samples = LoopStacks(1, times, [0] * len(times), [(LOOP, 25)], [stack], FUNCTIONS)
    rounds = [Round("optimizer", 0, 1, turn * 20 * MS + 18 * MS, 0, 0) for turn in range(TURNS)]
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    spans: Any = np.zeros(TURNS, SPAN_DTYPE)
    spans["start_ns"], spans["duration_ns"] = np.arange(TURNS) * 20 * MS + 14 * MS, MS
    spans["kind"], spans["tid"] = KIND_PHASE, 1
    told: list[Any] = [*rounds, samples]
    return of_takers(Rank(0, None, 0, process_of(identity, told, spans), []), [pool(taker_line)])


def test_what_a_generator_makes_of_an_item_is_a_wait_until_the_step_begins() -> None:
    (source,) = found(IN_TAKER)
    assert (source.description.dataset, source.number) == ("batches", 1)
    assert source.deliveries.wait_ns.tolist() == [14 * MS] * TURNS


def without_calls(*stacks: list[tuple[int, int]], taken_by: str = "train.py:20") -> list[LoaderRun]:
    """Sample a loop of no known call each ms from one item to the next, in each stack equally often."""
    times = [turn * 20 * MS + ms * MS for turn in range(TURNS) for ms in range(2, 20)]
    numbers = [at % len(stacks) for at in range(len(times))]
    samples = LoopStacks(1, times, numbers, [(LOOP, 22)], [*stacks], FUNCTIONS)
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, [samples], np.zeros(0, SPAN_DTYPE)), [])
    return of_takers(rank, [pool(10, taken_by)])


def test_without_a_call_that_trains_samples_tell_the_share_of_a_generator() -> None:
    (source,) = without_calls(IN_TAKER, IN_LOOP)
    # 1 ms of waiting, and half of the 19 that follow.
    assert source.deliveries.wait_ns[:-1] == pytest.approx(10.5 * MS, rel=0.01)
    augment = [(AUGMENT, 3), (3, 31), (LOOP, 22)]  # another generator, which takes from the first
    FUNCTIONS.append(("train.py", "augmented", 30))
    (source,) = without_calls([(TAKER, 12), (3, 31), (LOOP, 22)], augment, IN_LOOP, IN_LOOP)
    assert source.deliveries.wait_ns[:-1] == pytest.approx(10.5 * MS, rel=0.01)


def test_a_loop_that_computes_or_takes_in_a_function_has_no_such_share() -> None:
    assert without_calls(IN_LOOP) == []
    assert without_calls([(LOOP, 22)]) == []  # on the line of its header, in no generator
    assert without_calls(IN_TAKER, taken_by="") == []  # a function that takes an item and trains on it


def test_what_the_loop_computes_with_an_item_is_no_wait() -> None:
    assert found(IN_LOOP) == []
    assert found(IN_LOOP, taker_line=20) == []  # it takes items itself


def test_a_loop_that_does_something_else_in_between_is_left_as_it_is() -> None:
    assert found(IN_TAKER, taker_line=99) == []  # nothing tells where the taker is


def test_calls_that_train_again_on_an_item_begin_no_step() -> None:
    taken = pool(10).deliveries  # each at 1 ms of its 20
    begun = np.concatenate([taken["delivered_ns"] + at * MS for at in (2, 5, 8)])
    begun.sort()
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, [], np.zeros(0, SPAN_DTYPE)), [])
    epochs = np.zeros(len(begun), np.int64)
    calls = own_source(rank, pool(10).description, begun - MS, begun, epochs, 1)
    found = _one_an_item(calls, taken)
    assert found.deliveries["delivered_ns"].tolist() == (taken["delivered_ns"] + 2 * MS).tolist()
    assert [each.batches for each in found.passes.values()] == [TURNS]
    assert len(_one_an_item(found, taken).deliveries) == TURNS  # one call an item: all are kept


def test_a_call_that_trains_on_several_items_is_one_step() -> None:
    taken = pool(10).deliveries
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, [], np.zeros(0, SPAN_DTYPE)), [])
    begun = taken["delivered_ns"][1::2] + MS
    calls = own_source(rank, pool(10).description, begun - MS, begun, np.zeros(len(begun), np.int64), 1)
    assert len(_one_an_item(calls, taken).deliveries) == TURNS // 2


def test_a_turns_wait_holds_the_wait_for_its_first_item() -> None:
    """Else both are added up: where samples of the call's own line shorten the wait before it."""
    taken = pool(10).deliveries  # each from 0 to 1 ms of its 20
    identity = Identity(format=1, pid=1, ppid=0, role="main", clock=(0, 0, 1))
    rank = Rank(0, None, 0, process_of(identity, [], np.zeros(0, SPAN_DTYPE)), [])
    begun = taken["delivered_ns"] + 4 * MS
    late = own_source(rank, pool(10).description, begun - MS, begun, np.zeros(TURNS, np.int64), 1)
    found = _from_the_first_take(late, taken).deliveries
    assert found["wait_start_ns"].tolist() == taken["wait_start_ns"].tolist()
    early = own_source(rank, pool(10).description, begun - 8 * MS, begun, np.zeros(TURNS, np.int64), 1)
    assert (
        _from_the_first_take(early, taken).deliveries["wait_start_ns"].tolist() == (begun - 8 * MS).tolist()
    )
