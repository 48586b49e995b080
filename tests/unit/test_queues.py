"""What is recorded of items that threads and processes hand to each other; programs see nothing of it."""

from __future__ import annotations

import asyncio
import asyncio.queues
import concurrent.futures
import concurrent.futures.thread
import ctypes  # noqa: F401  # as numpy imports it
import gc
import logging.handlers
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import os
import pickle
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import iter_unpack
from typing import Any

import pytest

from iotrace.agent.patching import MARKER, undo_all
from iotrace.agent.pools import beside, conditions, event_loops, executors, pipes, queues, results, tasks
from iotrace.agent.recording import borders
from iotrace.agent.recording.encode import packed_spans
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder(str(tmp_path))
    monkeypatch.setattr(found, "start_loop", lambda: None)
    monkeypatch.setattr(found, "start", lambda: None)
    monkeypatch.setattr(found, "flush_soon", lambda: None)
    queues.hook_queues(queue, found)
    conditions.hook_conditions(threading, found)
    pipes.hook_connections(multiprocessing.connection, found)
    pipes.hook_queues(multiprocessing.queues, found)
    yield found
    undo_all()


def rows(recorder: Recorder, kind: int) -> list[dict[str, int]]:
    found = [row for row in recorder.records if isinstance(row, tuple) and row[0] == kind]
    return [dict(zip(names.ROW_FIELDS[kind], row[1:], strict=True)) for row in found]


def taken_of(recorder: Recorder) -> list[dict[str, int]]:
    return [each for each in rows(recorder, names.HANDED_ROW) if each["queue"] != -1]


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Item:
    """What is handed over; it can be referred to weakly."""


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue])
def test_an_item_is_known_by_who_made_it_and_who_took_it(recorder: Recorder, kind: type) -> None:
    ahead: Any = kind()

    def make() -> None:
        for text in ("b", "a", "c"):
            ahead.put(text)

    in_thread(make)
    assert sorted(ahead.get() for _ in range(3)) == ["a", "b", "c"]
    made, taken = rows(recorder, names.MADE_ROW), taken_of(recorder)
    assert [(each["pool"], each["task"]) for each in made] == [
        (each["queue"], each["item"]) for each in taken
    ]
    assert sorted(each["task"] for each in made) == [0, 1, 2]
    assert {each["tid"] for each in taken} == {threading.get_native_id()}
    assert threading.get_native_id() not in {each["tid"] for each in made}
    for item, hop in zip(made, taken, strict=True):
        assert item["prepared_ns"] <= hop["taken_ns"]
    assert len(rows(recorder, names.BATCH_ROW)) == 3


def test_an_item_was_begun_when_its_maker_had_put_the_one_before(recorder: Recorder) -> None:
    ahead: queue.Queue[int] = queue.Queue()

    def make() -> None:
        for number in range(3):
            ahead.put(number)

    in_thread(make)
    for _ in range(3):
        ahead.get()
    first, second, third = rows(recorder, names.MADE_ROW)
    assert first["taken_ns"] == -1
    assert first["prepared_ns"] <= second["taken_ns"] <= second["prepared_ns"] <= third["taken_ns"]


def test_one_object_may_lie_there_twice_and_two_may_take_it(recorder: Recorder) -> None:
    ahead: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(2):
        ahead.put(None)
    assert ahead.get() is None
    in_thread(lambda: ahead.get_nowait())
    taken = taken_of(recorder)
    assert [each["item"] for each in taken] == [0, 1]
    assert len({each["tid"] for each in taken}) == 2


def test_a_full_and_an_empty_queue_say_so_as_ever(recorder: Recorder) -> None:
    ahead: queue.Queue[int] = queue.Queue(1)
    ahead.put(1)
    with pytest.raises(queue.Full) as full:
        ahead.put(2, timeout=0.001)
    assert queues.__file__ not in [entry.path for entry in full.traceback]
    with pytest.raises(queue.Full):
        ahead.put_nowait(2)
    assert ahead.get() == 1
    with pytest.raises(queue.Empty):
        ahead.get_nowait()
    with pytest.raises(TypeError):
        ahead.put()  # type: ignore[call-arg]
    assert queues.channels.get(ahead).stamps == {}


def test_what_the_loop_waits_for_the_interpreter_between_two_items_is_noted(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, waited = tasks.current.thread, [0]
    monkeypatch.setattr(thread, "lock_waits", waited)
    monkeypatch.setattr(thread, "took", (0, 0))
    for before_ns, now_ns in ((0, 0), (5_000_000, 5_000_000), (5_000_000, 8_000_000), (8_010_000, 8_010_000)):
        waited[0] = now_ns
        borders.note_lock_wait(before_ns, 77, recorder)
    texts = {number: text for text, number in recorder._texts.items()}
    found = [(texts.get(row["file"], ""), row["waited_ns"]) for row in rows(recorder, names.LOCKED_ROW)]
    # 10 us are too short to be told.
    assert found == [(names.TURN_AT, 5_000_000), ("", 3_000_000)]


def test_an_item_asked_for_in_vain_is_waited_for_since_then(recorder: Recorder) -> None:
    ahead: queue.Queue[int] = queue.Queue()
    ahead.put(1)
    ahead.get()
    for _ in range(2):
        with pytest.raises(queue.Empty):
            ahead.get(timeout=0.001)
    in_thread(lambda: ahead.put(2))
    ahead.get()
    hop, item = taken_of(recorder)[1], rows(recorder, names.MADE_ROW)[1]
    assert hop["asked_ns"] < item["prepared_ns"] <= hop["taken_ns"]


def test_nothing_is_kept_alive(recorder: Recorder) -> None:
    ahead: queue.Queue[Item] = queue.Queue()
    item = Item()
    ahead.put(item)
    assert vars(item) == {}
    assert ahead.get() is item
    ahead.put(Item())
    left, alive = weakref.ref(item), weakref.ref(ahead)
    del item
    gc.collect()
    assert left() is None
    del ahead
    gc.collect()
    assert alive() is None


def test_items_that_leave_unseen_are_forgotten(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MOST", 4)
    ahead: queue.Queue[Item] = queue.Queue()
    for _ in range(20):
        ahead.put(Item())
        ahead.queue.clear()
    assert len(queues.channels.get(ahead).stamps) <= 4


def test_queues_of_python_itself_are_left_alone(recorder: Recorder) -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.emit(logging.makeLogRecord({"msg": "text"}))
    assert records.get().getMessage() == "text"
    assert taken_of(recorder) == rows(recorder, names.MADE_ROW) == []


def test_a_thread_that_makes_items_waits_where_nobody_sees_for_what(recorder: Recorder) -> None:
    ahead: queue.Queue[int] = queue.Queue()
    goes_on = threading.Event()

    def make() -> None:
        ahead.put(1)
        goes_on.wait(5)
        ahead.put(2)

    thread = threading.Thread(target=make)
    thread.start()
    ahead.get()
    goes_on.set()
    ahead.get()
    thread.join()
    made = rows(recorder, names.MADE_ROW)
    hops = rows(recorder, names.HANDED_ROW)
    unknown = [each for each in hops if each["queue"] == -1 and each["tid"] == made[1]["tid"]]
    assert len(unknown) <= 1  # none, where it was set before
    for each in unknown:
        assert made[1]["taken_ns"] <= each["asked_ns"] <= each["taken_ns"] <= made[1]["prepared_ns"]


def test_a_subclass_keeps_its_methods(recorder: Recorder) -> None:
    class Doubling(queue.Queue):  # type: ignore[type-arg]
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return 2 * super().get(block, timeout)

    ahead = Doubling()
    ahead.put(21)
    assert ahead.get() == 42
    assert isinstance(ahead, queue.Queue)
    (hop,) = taken_of(recorder)
    assert hop["item"] == 0


class Last(queue.Queue):  # type: ignore[type-arg]
    """A queue that keeps and gives what it has in a way of its own."""

    def _put(self, item: Any) -> None:
        if item not in self.queue:
            self.queue.append(item)

    def _get(self) -> Any:
        return [self.queue.pop()]


def test_a_subclass_may_drop_items_and_give_others(recorder: Recorder) -> None:
    own = Last()
    for number in (1, 2, 1):
        own.put([number])
    assert [own.get(), own.get(), own.qsize()] == [[[2]], [[1]], 0]


@pytest.mark.parametrize("make", [queue.Queue, queue.SimpleQueue, multiprocessing.SimpleQueue])
def test_a_call_that_is_wrong_fails_as_ever(recorder: Recorder, make: Any) -> None:
    with pytest.raises(TypeError, match="argument"):
        make().put()
    assert not recorder._absorbed


def test_all_is_undone(recorder: Recorder) -> None:
    undo_all()
    for kind in (queue.Queue, queue.SimpleQueue, multiprocessing.queues.Queue):
        for name in ("get", "put"):
            assert not hasattr(vars(kind)[name], MARKER)
    assert not hasattr(threading.Condition.wait, MARKER)
    assert not hasattr(multiprocessing.connection._ForkingPickler.dumps, MARKER)  # type: ignore[attr-defined]
    pickled = multiprocessing.connection._ForkingPickler.dumps([1])  # type: ignore[attr-defined]
    assert pickle.loads(pickled) == [1]


def test_what_a_pipe_carries_stays_as_it_is(recorder: Recorder) -> None:
    here, there = multiprocessing.Pipe()
    for item in ([1, 2], None, b"x" * 100_000, {"a": Item}):
        there.send(item)
        sent = here.recv_bytes()
        assert sent == bytes(multiprocessing.connection._ForkingPickler.dumps(item))  # type: ignore[attr-defined]
    here.close()
    with pytest.raises(OSError, match=r"Broken pipe|closed"):
        there.send(1)


def test_an_item_of_a_pipe_is_known_on_both_sides(recorder: Recorder) -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    for item in ([1], list(range(10_000)), [1]):
        writer.send(item)
        assert reader.recv() == item
    made, taken = rows(recorder, names.MADE_ROW), taken_of(recorder)
    assert [(each["pool"], each["task"]) for each in made] == [
        (each["queue"], each["item"]) for each in taken
    ]
    assert made[0]["task"] == made[2]["task"] != made[1]["task"]
    assert made[0]["pool"] % 2 == 1


def test_a_large_item_of_a_pipe_has_come_once_its_bytes_have(recorder: Recorder) -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    sending = threading.Thread(target=lambda: writer.send(bytes(2 << 20)))
    sending.start()
    reader.recv()
    sending.join()
    (sent,), (made,) = rows(recorder, names.SENT_ROW), rows(recorder, names.MADE_ROW)
    assert (sent["pool"], sent["item"]) == (made["pool"], made["task"])
    assert sent["bytes"] > 2 << 20
    (batch,) = rows(recorder, names.BATCH_ROW)
    assert batch["wait_start_ns"] <= batch["received_ns"] <= batch["delivered_ns"]


def _send(ahead: Any) -> None:
    for number in range(5):
        ahead.put([number])


@pytest.mark.parametrize("name", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_a_process_that_puts_and_dies_harms_nobody(recorder: Recorder, name: str) -> None:
    context = multiprocessing.get_context("fork")
    ahead = getattr(context, name)()
    process = context.Process(target=_send, args=(ahead,))
    process.start()
    assert [ahead.get() for _ in range(5)] == [[number] for number in range(5)]
    process.join()
    assert process.exitcode == 0
    taken = taken_of(recorder)
    assert len(taken) == 5
    assert len({each["item"] for each in taken}) == 5
    if name != "SimpleQueue":
        ahead.close()
        with pytest.raises(ValueError, match="closed"):
            ahead.put(1)


def test_a_fork_in_the_middle_leaves_both_sides_whole(recorder: Recorder) -> None:
    ahead: queue.Queue[str] = queue.Queue()
    ahead.put("both have it")
    pid = os.fork()
    if pid == 0:
        queues.after_fork_in_child()
        pipes.after_fork_in_child()
        ahead.put("the child's")
        os._exit(0 if [ahead.get(), ahead.get()] == ["both have it", "the child's"] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ahead.get() == "both have it"
    assert len(taken_of(recorder)) == 1


def test_items_that_come_too_fast_are_followed_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_EVERY", 4)
    monkeypatch.setattr(queues, "FAST_NS", 10**18)
    fast: queue.Queue[Item] = queue.Queue()
    for _ in range(20):
        in_thread(lambda: fast.put(Item()))
        fast.get()
    channel = queues.channels.get(fast)
    assert channel.is_fast
    assert not channel.stamps
    assert len(taken_of(recorder)) == 3


def test_queues_that_are_made_too_fast_are_followed_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_new", 0)
    monkeypatch.setattr(queues, "_looked_at_new_ns", time.monotonic_ns())
    monkeypatch.setattr(queues, "_LOOK_AT_NEW_EVERY", 4)
    monkeypatch.setattr(queues, "_SHORT_LIVED_NS", 10**12)
    made: list[queue.Queue[int]] = [queue.Queue() for _ in range(8)]
    for each in made:
        each.put(1)
        assert each.get() == 1
    assert [queues.channels.get(each) is not None for each in made] == [True] * 4 + [False] * 4


def test_items_of_a_coroutine_that_come_too_fast_are_followed_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LOOK_EVERY", 4)
    monkeypatch.setattr(queues, "FAST_NS", 10**12)
    event_loops.hook_queues(asyncio.queues, recorder)

    async def take() -> asyncio.Queue[int]:
        ahead: asyncio.Queue[int] = asyncio.Queue()
        queues.channels.put(ahead, known := queues.Channel("asyncio.Queue", 0))
        known.looked_ns = time.monotonic_ns()
        for number in range(20):
            ahead.put_nowait(number)
            assert await ahead.get() == number
        return ahead

    assert queues.channels.get(asyncio.run(take())).counted == 4


FEED = """
def feed(ahead, function, items):
    for item in items:
        ahead.put(function(item))

async def publish(ahead, item):
    ahead.put(item)

class Node:
    def __init__(self, source=None, **own):
        self.source = source
        self.__dict__.update(own)

def populate(source, ahead, items):
    def put(item):
        ahead.put(item)
    for item in items:
        put([item])
"""


def of_library() -> dict[str, Any]:
    """What a library that feeds loops defines."""
    known: dict[str, Any] = {}
    exec(compile(FEED, "/x/site-packages/torchdata/nodes.py", "exec"), known)
    return known


def double(item: int) -> list[int]:
    return [2 * item]


@pytest.mark.parametrize(("function", "named"), [(double, "double"), (str, "torchdata")])
def test_a_librarys_stage_has_the_name_of_the_programs_function(
    recorder: Recorder, function: Callable[[int], Any], named: str
) -> None:
    ahead: queue.Queue[Any] = queue.Queue()
    in_thread(lambda: of_library()["feed"](ahead, function, [1, 2, 3]))
    assert len([ahead.get() for _ in range(3)]) == 3
    (about,) = [each for each in recorder.records if isinstance(each, dict) and each["type"] == "queue"]
    assert about["by"] == named


def drawn() -> Iterator[int]:
    yield from (1, 2, 3)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([{"iterable": drawn()}], "drawn"),
        ([{"iterable": drawn()}, {}, {"map_fn": double, "num_workers": 0}, {}], "double"),
        ([{"iterable": drawn()}, {"map_fn": double, "num_workers": 4}], "torchdata"),
        ([{"iterable": [1, 2, 3]}], "torchdata"),
    ],
)
def test_a_thread_that_draws_from_the_programs_source_has_its_name(
    recorder: Recorder, nodes: list[dict[str, Any]], named: str
) -> None:
    """Nodes of torchdata from the first one on; behind one with threads of its own another stage draws."""
    library, node = of_library(), None
    for own in nodes:
        node = library["Node"](node, **own)
    ahead: queue.Queue[Any] = queue.Queue()
    in_thread(lambda: library["populate"](node, ahead, [1, 2, 3]))
    assert len([ahead.get() for _ in range(3)]) == 3
    (about,) = [each for each in recorder.records if isinstance(each, dict) and each["type"] == "queue"]
    assert about["by"] == named


def put_all(into: Any, items: Any) -> None:
    for item in items:
        into.put(item)


def images() -> Iterator[bytearray]:
    yield bytearray(9)


def of_images(into: Any) -> None:
    put_all(into, [bytearray(9)])


class Making:
    def __call__(self) -> bytearray:
        return bytearray(9)


def put_made(make: Callable[[], bytearray], into: Any) -> None:
    into.put(make())


class Feeder(threading.Thread):
    def __init__(self, into: Any, source: Any) -> None:
        super().__init__(name="feeder")
        self.into, self.source = into, source

    def run(self) -> None:
        put_all(self.into, self.source)


CODES = {
    **{each.__name__: each.__code__ for each in (put_all, put_made, images, of_images)},
    "Making": Making.__call__.__code__,
    "Feeder.run": Feeder.run.__code__,
}


@pytest.mark.parametrize(
    ("make", "apart"),
    [
        (lambda q: threading.Thread(target=put_all, args=(q, images()), name="a"), ["images", "thread a"]),
        (lambda q: threading.Thread(target=of_images, args=(q,), name="b"), ["of_images", "thread b"]),
        (lambda q: threading.Thread(target=put_all, args=(q, map(len, [b""])), name="c"), ["thread c"]),
        (lambda q: threading.Thread(target=put_made, args=(Making(), q), name="d"), ["Making", "thread d"]),
        (lambda q: Feeder(q, images()), ["images", "Feeder.run", "thread feeder"]),
    ],
)
def test_a_queue_says_what_tells_its_maker_from_others_of_that_function(
    recorder: Recorder, make: Callable[[Any], threading.Thread], apart: list[str]
) -> None:
    queue_ = queue.Queue[Any]()
    thread = make(queue_)
    thread.start()
    thread.join()
    queue_.get()
    (about,) = [row for row in recorder.records if isinstance(row, dict) and row["type"] == "queue"]
    by = "put_made" if "Making" in apart else "put_all"
    assert (about["by"], about["apart"]) == (by, apart)
    lines = {name: f"{__file__}:{code.co_firstlineno}" for name, code in CODES.items()}
    assert about["sites"] == {name: lines[name] for name in (by, *apart) if name in lines}


def test_what_a_librarys_event_loop_puts_has_no_maker(recorder: Recorder) -> None:
    """Its thread sleeps for all stages at once."""
    ahead: queue.Queue[Any] = queue.Queue()
    in_thread(lambda: asyncio.run(of_library()["publish"](ahead, [1])))
    assert ahead.get() == [1]
    assert not rows(recorder, names.MADE_ROW)
    assert not taken_of(recorder)


def test_what_a_pools_thread_puts_is_made_by_the_task_that_returned_it(recorder: Recorder) -> None:
    executors.hook_futures(concurrent.futures._base, recorder)
    executors.hook_threads(concurrent.futures.thread, recorder)
    ahead: Any = queue.Queue()

    async def produce(pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            item = await loop.run_in_executor(pool, lambda: (Item(), 1))
            await loop.run_in_executor(None, ahead.put, item)

    with ThreadPoolExecutor(1) as pool:
        in_thread(lambda: asyncio.run(produce(pool)))
    ahead.get(), ahead.get()
    taken = taken_of(recorder)
    made = [each for each in rows(recorder, names.MADE_ROW) if each["pool"] == taken[0]["queue"]]
    assert [each["task"] for each in made] == [each["item"] for each in taken] == [0, 1]
    unseen = [each for each in rows(recorder, names.HANDED_ROW) if each["queue"] == -1]
    idle = [each["asked_ns"] for each in unseen if each["tid"] == made[1]["tid"]]
    assert idle == [made[0]["prepared_ns"]]
    assert made[1]["taken_ns"] == made[0]["prepared_ns"]


def test_a_thread_that_has_the_number_of_an_earlier_one_was_not_idle_since_then(recorder: Recorder) -> None:
    def held() -> Any:
        item = Item()
        results.hold(item, "make", ((0, 1, 2, 0), ()))
        found = results.let_go(item)
        assert found is not None
        return found.since_ns

    idents = []
    for _ in range(2):
        in_thread(lambda: idents.append((threading.get_ident(), held(), held())))
    assert [each[1:] for each in idents] == [(-1, 2), (-1, 2)]


def test_an_object_in_the_place_of_a_result_is_none(recorder: Recorder) -> None:
    executors.hook_futures(concurrent.futures._base, recorder)
    executors.hook_threads(concurrent.futures.thread, recorder)
    first, other = [Item()], [Item()]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: first).result()
    first[:] = other  # as one that is made where another one was
    assert results.let_go(first) is None
    ahead: Any = queue.Queue()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ahead.put, other).result()
    assert ahead.get() is other
    assert [each["item"] for each in taken_of(recorder)] == [0]


def test_an_object_that_lies_there_twice_counts_twice(recorder: Recorder) -> None:
    ahead: Any = queue.Queue()
    same = Item()
    in_thread(lambda: [ahead.put(same) for _ in range(3)])  # type: ignore[func-returns-value]
    for _ in range(3):
        ahead.get()
    assert [each["length"] for each in taken_of(recorder)] == [3, 2, 1]


def test_a_queue_that_outlives_a_session_is_recorded_in_the_next_one(
    recorder: Recorder, tmp_path: Path
) -> None:
    ahead: queue.Queue[int] = queue.Queue()
    for number in range(2):
        ahead.put(number)
    ahead.get()
    undo_all()
    recorder.over = True
    ahead.get()
    later = Recorder(str(tmp_path))
    later.start = later.start_loop = lambda: None  # type: ignore[method-assign]
    queues.hook_queues(queue, later)
    ahead.put(3)
    assert ahead.get() == 3
    assert len(taken_of(later)) == len(rows(later, names.BATCH_ROW)) == len(rows(later, names.MADE_ROW)) == 1
    assert len([each for each in later.records if isinstance(each, dict) and each["type"] == "queue"]) == 1
    assert len(rows(recorder, names.BATCH_ROW)) == 1


def test_the_span_of_an_item_is_made_when_it_is_written(recorder: Recorder) -> None:
    ahead: queue.Queue[int] = queue.Queue()

    def make() -> None:
        for number in range(2):
            time.sleep(0.0005)
            ahead.put(number)

    in_thread(make)
    in_thread(lambda: [ahead.get() for _ in range(2)])  # type: ignore[arg-type, return-value]
    (made,) = [row for row in rows(recorder, names.MADE_ROW) if row["taken_ns"] >= 0]
    packed = next(iter_unpack(names.SPAN_FORMAT, packed_spans(recorder.spans)))
    span = dict(zip(names.SPAN_FIELDS, packed, strict=True))
    assert span["tid"] == made["tid"]
    assert span["start_ns"] <= made["taken_ns"]  # it had put the one before
    assert span["start_ns"] + span["duration_ns"] == made["prepared_ns"]
    assert 0 <= span["cpu_ns"] <= span["duration_ns"]


def test_the_cpu_clock_is_read_behind_a_switch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    usage, read = [0] * 16, [0]

    def thread_time_ns() -> int:
        read[0] += 1
        return 1_000_000 * read[0]

    monkeypatch.setattr(tasks, "getrusage", lambda _: tuple(usage))
    monkeypatch.setattr(tasks, "thread_time_ns", thread_time_ns)
    monkeypatch.setattr(tasks.current.thread, "task_switches", -1)
    first, second = tasks.begin_task(), tasks.begin_task()
    assert read == [1]
    assert second[2] - first[2] == second[1] - first[1]  # it has been on its CPU
    usage[14] += 1
    assert tasks.begin_task()[2] == 2_000_000
