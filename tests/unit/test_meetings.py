"""What is recorded of items that threads hand over by hand, behind conditions, events and semaphores."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from iotrace.agent.patching import MARKER, undo_all
from iotrace.agent.pools import callers, meetings, queues
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder(str(tmp_path))
    monkeypatch.setattr(found, "start_loop", lambda: None)
    monkeypatch.setattr(found, "start", lambda: None)
    monkeypatch.setattr(found, "flush_soon", lambda: None)
    meetings.watch(threading, found)
    yield found
    undo_all()


def rows(recorder: Recorder, kind: int) -> list[dict[str, int]]:
    found = [row for row in recorder.records if isinstance(row, tuple) and row[0] == kind]
    return [dict(zip(names.ROW_FIELDS[kind], row[1:], strict=True)) for row in found]


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_nothing_is_patched_until_the_program_makes_one(recorder: Recorder) -> None:
    assert not hasattr(threading.Condition.__enter__, MARKER)
    threading.Condition()
    assert hasattr(threading.Condition.__enter__, MARKER)


def test_conditions_of_python_itself_are_left_alone(recorder: Recorder) -> None:
    threading.Barrier(1).wait()
    in_thread(lambda: None).join()
    assert not hasattr(threading.Condition.__enter__, MARKER)


def test_a_place_where_python_makes_one_is_looked_at_once(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each future has a condition, and zarr makes some for each chunk."""
    looked: list[Any] = []
    making = callers.making
    monkeypatch.setattr(meetings, "_elsewhere", set())
    monkeypatch.setattr(meetings, "making", lambda *of: looked.append(of) or making(*of))
    assert [Future().done() for _ in range(3)] == [False] * 3
    assert len(looked) == 1
    for over in (True, False):  # the program's own place counts as soon as something is recorded
        recorder.over = over
        threading.Condition()
        assert hasattr(threading.Condition.__enter__, MARKER) is not over


@pytest.mark.parametrize("how", ["wait", "wait_for"])
def test_a_deque_behind_a_condition(recorder: Recorder, how: str) -> None:
    ring: deque[int] = deque()
    changed = threading.Condition()

    def fill() -> None:
        for number in range(5):
            with changed:
                ring.append(number)
                changed.notify()
        with changed:  # elsewhere: no item
            changed.notify_all()

    def take() -> int:
        with changed:
            if how == "wait_for":
                changed.wait_for(lambda: ring)
            while not ring:
                changed.wait()
            return ring.popleft()

    thread = in_thread(fill)
    assert [take() for _ in range(5)] == [0, 1, 2, 3, 4]
    thread.join()
    made, taken = rows(recorder, names.MADE_ROW), rows(recorder, names.HANDED_ROW)
    assert [each["task"] for each in made] == [0, 1, 2, 3, 4]
    assert {each["tid"] for each in made} == {thread.native_id}
    assert [each["item"] for each in taken] == list(range(len(taken)))
    if how == "wait_for":  # it says that the loop takes there, also without a wait
        assert len(taken) == len(rows(recorder, names.BATCH_ROW)) == 5
    for item, hop in zip(made, taken, strict=False):
        assert item["prepared_ns"] <= hop["taken_ns"]


def test_an_event_hands_over_what_was_last_set(recorder: Recorder) -> None:
    full, empty = threading.Event(), threading.Event()
    empty.set()

    def fill() -> None:
        for _ in range(4):
            empty.wait()
            empty.clear()
            full.set()

    thread = in_thread(fill)
    for _ in range(4):
        full.wait()
        full.clear()
        empty.set()
    thread.join()
    assert [each["item"] for each in rows(recorder, names.HANDED_ROW)] == [0, 1, 2, 3]
    assert {each["tid"] for each in rows(recorder, names.MADE_ROW)} == {thread.native_id}


def test_a_semaphore_hands_over_what_was_released(recorder: Recorder) -> None:
    filled = threading.Semaphore(0)

    def fill() -> None:
        for _ in range(4):
            filled.release()

    in_thread(fill).join()
    for _ in range(4):
        filled.acquire()
    assert [each["item"] for each in rows(recorder, names.HANDED_ROW)] == [0, 1, 2, 3]


def test_a_semaphore_that_limits_hands_nothing_over(recorder: Recorder) -> None:
    limit = threading.Semaphore(2)

    def work() -> None:
        for _ in range(3):
            with limit:
                pass

    in_thread(work).join()
    work()
    assert not rows(recorder, names.HANDED_ROW)


def test_a_wait_that_ends_in_vain_belongs_to_the_next(recorder: Recorder) -> None:
    full = threading.Event()
    assert not full.wait(0)
    asked = rows(recorder, names.HANDED_ROW)
    in_thread(full.set).join()
    assert full.wait(0)
    (taken,) = rows(recorder, names.HANDED_ROW)
    assert not asked
    assert taken["asked_ns"] < taken["taken_ns"]


def test_what_is_raised_in_a_section_takes_nothing(recorder: Recorder) -> None:
    changed = threading.Condition()
    with pytest.raises(KeyError), changed:
        raise KeyError
    assert changed.acquire(blocking=False)
    assert not rows(recorder, names.HANDED_ROW)


def test_nothing_is_kept_alive(recorder: Recorder) -> None:
    changed = threading.Condition()
    gone = weakref.ref(changed)
    with changed:
        changed.notify()
    del changed
    gc.collect()
    assert gone() is None


def test_subclasses_count_as_what_they_derive_from(recorder: Recorder) -> None:
    class Mine(threading.Semaphore):
        def __init__(self) -> None:
            super().__init__(0)

    known = queues.channels.get(Mine())
    assert known is None or known.made_by == "threading.Semaphore"
    kept = threading.BoundedSemaphore(3)
    assert queues.channels.get(kept).made_by == "threading.Semaphore"
    assert queues.channels.get(kept).permits == 3


def test_one_for_each_request_is_followed_for_some_alone(recorder: Recorder) -> None:
    events = [threading.Event() for _ in range(1000)]
    in_thread(lambda: [each.set() for each in events]).join()
    assert len(rows(recorder, names.MADE_ROW)) < 300


def test_what_is_used_too_often_is_followed_no_longer(recorder: Recorder) -> None:
    permits = threading.Semaphore(0)
    queues.channels.get(permits).looked_ns = 1 << 62  # as if no time had passed since
    in_thread(lambda: [permits.release() for _ in range(3 * queues.LOOK_EVERY)]).join()
    assert len(rows(recorder, names.MADE_ROW)) < queues.LOOK_EVERY + 2
    assert permits.acquire()


def test_what_the_makers_own_start_holds_dies_as_ever(recorder: Recorder) -> None:
    class Thing:
        pass

    class Mine(threading.Condition):
        def __init__(self) -> None:
            thing = Thing()
            known = weakref.ref(thing)
            super().__init__()
            self.event = threading.Event()
            del thing
            self.died = known() is None

    made = Mine()
    assert made.died
    assert queues.channels.get(made) is not None


def test_a_semaphore_is_entered_by_acquiring_it(recorder: Recorder) -> None:
    threading.Semaphore()
    assert hasattr(threading.Semaphore.acquire, MARKER)
    assert threading.Semaphore.__enter__ is threading.Semaphore.acquire
    undo_all()
    assert threading.Semaphore.__enter__ is threading.Semaphore.acquire


def test_who_makes_one_for_each_request_pays_no_longer(recorder: Recorder) -> None:
    events = [threading.Event() for _ in range(300)]
    assert sum(queues.channels.get(each) is not None for each in events) == 256
    for kind in (threading.Condition, threading.Event, threading.Semaphore):
        assert not hasattr(kind.__init__, MARKER)


def doubts(recorder: Recorder) -> list[str]:
    rows_of = (row for row in recorder.records if isinstance(row, dict))
    return [str(row["doubt"]) for row in rows_of if row["type"] == "pool_doubt"]


def test_semaphores_that_hand_out_turns_hand_over_nothing(recorder: Recorder) -> None:
    mine, its = threading.Semaphore(0), threading.Semaphore(1)
    scores: list[Any] = []

    def work() -> None:
        for number in range(5):
            its.acquire()
            scores.append(number / 2)
            mine.release()

    thread = in_thread(work)
    for _ in range(5):
        mine.acquire()
        print(scores[-1])
        its.release()
    thread.join()
    assert doubts(recorder) == ["unseen"]


def test_a_slot_beside_two_semaphores_hands_over(recorder: Recorder) -> None:
    slot, mine, its = [None], threading.Semaphore(0), threading.Semaphore(1)

    def work() -> None:
        for number in range(5):
            its.acquire()
            slot[0] = [number, object()]  # type: ignore[call-overload]
            mine.release()

    thread = in_thread(work)
    for _ in range(5):
        mine.acquire()
        assert slot[0]
        its.release()
    thread.join()
    assert not doubts(recorder)
    assert len(rows(recorder, names.HANDED_ROW)) == 5


class Scorer:
    """Answers what the loop asks: it gets weights, and leaves scores."""

    def __init__(self) -> None:
        self.go, self.done = threading.Event(), threading.Event()
        self.weights: Any = None
        self.scores: Any = None

    def work(self) -> None:
        for _ in range(5):
            self.go.wait()
            self.go.clear()
            self.scores = [self.weights, object()]
            self.done.set()


def test_an_answer_to_what_the_loop_hands_over_is_no_item(recorder: Recorder) -> None:
    scorer = Scorer()
    thread = in_thread(scorer.work)
    for _ in range(5):
        scorer.weights = [object()]
        scorer.done.clear()
        scorer.go.set()
        scorer.done.wait()
        assert scorer.scores
    thread.join()
    assert doubts(recorder) == ["unseen"]


def test_a_count_beside_two_semaphores_is_no_item(recorder: Recorder) -> None:
    done, mine, its = [0], threading.Semaphore(0), threading.Semaphore(1)

    def work() -> None:
        for _ in range(5):
            its.acquire()
            done[0] += 1
            mine.release()

    thread = in_thread(work)
    for _ in range(5):
        mine.acquire()
        assert done[0]
        its.release()
    thread.join()
    assert doubts(recorder) == ["unseen"]


class Ring:
    """A buffer of the program's own: what it holds lies behind methods."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.filled = threading.Semaphore(0)

    def keep(self, item: Any) -> None:
        self.items.append(item)

    def put(self, item: Any) -> None:
        self.keep(item)
        self.filled.release()

    def get(self) -> Any:
        self.filled.acquire()
        return self.items.pop(0)


def test_a_buffer_behind_methods_hands_over(recorder: Recorder) -> None:
    ring = Ring()
    thread = in_thread(lambda: [ring.put(object()) for _ in range(5)])
    thread.join()
    for _ in range(5):
        ring.get()
    assert not doubts(recorder)


def test_what_a_source_waits_for_without_an_item_is_a_wait_alone(recorder: Recorder) -> None:
    mine = threading.Semaphore(0)
    in_thread(mine.release).join()
    meetings.current.thread.depth += 1
    try:
        mine.acquire()
    finally:
        meetings.current.thread.depth -= 1
    (row,) = rows(recorder, names.HANDED_ROW)
    assert (row["queue"], row["item"]) == (-1, -1)
    assert not rows(recorder, names.BATCH_ROW)


def test_a_look_at_variables_keeps_none_alive_and_leaves_those_of_the_program(recorder: Recorder) -> None:
    def looked_at(asks: bool) -> tuple[Any, Any]:
        item = Ring()
        own = locals() if asks else None
        assert callers.variables_of(sys._getframe())["item"] is item
        gone = weakref.ref(item)
        del item
        gc.collect()
        return gone(), own

    assert looked_at(False)[0] is None
    assert looked_at(True)[1]["asks"] is True
