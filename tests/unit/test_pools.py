"""What is recorded of the tasks of pools, and of who takes their results."""

from __future__ import annotations

import asyncio
import asyncio.futures
import asyncio.selector_events
import concurrent.futures
import concurrent.futures.process
import concurrent.futures.thread
import gc
import multiprocessing.pool
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from iotrace.agent.patching import undo_all
from iotrace.agent.pools import callers, event_loops, executors, process_pools, tasks, workers
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder(str(tmp_path))
    monkeypatch.setattr(found, "start_loop", lambda: None)
    executors.hook_futures(concurrent.futures._base, found)
    executors.hook_threads(concurrent.futures.thread, found)
    executors.hook_processes(concurrent.futures.process, found)
    process_pools.hook_pool(multiprocessing.pool, found)
    yield found
    undo_all()


def rows(recorder: Recorder, kind: int) -> list[dict[str, int]]:
    found = [row for row in recorder.records if isinstance(row, tuple) and row[0] == kind]
    return [dict(zip(names.ROW_FIELDS[kind], row[1:], strict=True)) for row in found]


def doubts(recorder: Recorder) -> list[str]:
    records: list[Any] = [each for each in recorder.records if isinstance(each, dict)]
    return [each["doubt"] for each in records if each["type"] == "pool_doubt"]


def double(value: int) -> int:
    return 2 * value


def test_a_result_is_taken_from_the_task_that_made_it(recorder: Recorder) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert [future.result() for future in [pool.submit(double, each) for each in (1, 2)]] == [2, 4]
    made, taken = rows(recorder, names.MADE_ROW), rows(recorder, names.BATCH_ROW)
    assert [(each["pool"], each["task"]) for each in made] == [
        (each["generation"], each["index"]) for each in taken
    ]
    for task, batch in zip(made, taken, strict=True):
        assert task["taken_ns"] <= task["prepared_ns"] <= batch["delivered_ns"]
        assert batch["sent_ns"] <= batch["delivered_ns"]
        assert task["tid"] != batch["tid"]
    assert len(recorder.spans) == 2


def test_a_result_counts_once_whoever_else_takes_it(recorder: Recorder) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(double, 1)
        other = threading.Thread(target=future.result)
        future.result()
        other.start()
        other.join()
        future.result()
    assert len(rows(recorder, names.BATCH_ROW)) == 1


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ThreadPool])
def test_a_pool_that_outlives_a_session_is_recorded_in_the_next_one(
    recorder: Recorder, tmp_path: Path, kind: Any
) -> None:
    def take() -> list[int]:
        results = (
            [future.result() for future in [pool.submit(double, 1)]] if kind is ThreadPoolExecutor else None
        )
        return results or list(pool.imap(double, [1]))

    with kind(1) as pool:
        assert take() == [2]
        undo_all()
        recorder.over, later = True, Recorder(str(tmp_path))
        later.start_loop = lambda: None  # type: ignore[method-assign]
        executors.hook_futures(concurrent.futures._base, later)
        executors.hook_threads(concurrent.futures.thread, later)
        process_pools.hook_pool(multiprocessing.pool, later)
        assert take() == [2]
    assert len(rows(recorder, names.BATCH_ROW)) == len(rows(later, names.BATCH_ROW)) == 1


def test_what_tasks_take_of_each_other_is_no_input(recorder: Recorder) -> None:
    with ThreadPoolExecutor(2) as pool:
        inner = pool.submit(double, 1)
        assert pool.submit(inner.result).result() == 2
    assert len(rows(recorder, names.BATCH_ROW)) == 1


def test_a_failed_task_and_a_future_of_nobodys_are_no_items(recorder: Recorder) -> None:
    own: Future[int] = Future()
    own.set_result(1)
    assert own.result() == 1
    with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result()
    assert recorder.records == []


def test_a_result_asked_for_in_vain_is_waited_for_since_then(recorder: Recorder) -> None:
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(goes_on.wait)
        with pytest.raises((TimeoutError, concurrent.futures.TimeoutError)):
            future.result(timeout=0.001)
        goes_on.set()
        future.result()
    (task,), (batch,) = rows(recorder, names.MADE_ROW), rows(recorder, names.BATCH_ROW)
    assert batch["wait_start_ns"] < task["prepared_ns"]


def test_a_poll_in_vain_is_known(recorder: Recorder) -> None:
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future, other = pool.submit(goes_on.wait), pool.submit(double, 1)
        assert not future.done()
        goes_on.set()
        while not (future.done() and other.done()):
            pass
        future.result()
    assert doubts(recorder) == ["polled"]


def test_a_wait_for_several_is_the_wait_for_the_one_that_is_taken(recorder: Recorder) -> None:
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(goes_on.wait)
        threading.Timer(0.01, goes_on.set).start()
        (done,) = concurrent.futures._base.as_completed([future])  # hooked before it is passed on
        assert done.result()
    (task,), (batch,) = rows(recorder, names.MADE_ROW), rows(recorder, names.BATCH_ROW)
    assert batch["wait_start_ns"] < task["prepared_ns"] <= batch["delivered_ns"]


@pytest.mark.parametrize(
    ("given", "fed"), [((1,), 0), (("path",), 0), ((bytes(8192),), 1), (([bytes(8192)],), 1)]
)
def test_a_task_that_is_given_data_is_known(recorder: Recorder, given: tuple[Any, ...], fed: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(len, *given) if fed else pool.submit(print, *given, end="")
        pool.submit(type, *given).result()
    assert [each["fed"] for each in rows(recorder, names.MADE_ROW)] == [fed]


def test_imap_in_order_and_in_none(recorder: Recorder) -> None:
    with ThreadPool(2) as pool:
        assert list(pool.imap(double, range(5))) == [0, 2, 4, 6, 8]
        assert sorted(pool.imap_unordered(double, range(5))) == [0, 2, 4, 6, 8]
        assert pool.apply_async(double, (3,)).get() == 6
    taken, made = rows(recorder, names.BATCH_ROW), rows(recorder, names.MADE_ROW)
    assert len(taken) == len(made) == 11
    assert sorted(each["index"] for each in taken) == sorted(each["task"] for each in made)


def test_what_map_returns_is_one_item_of_several_tasks(recorder: Recorder) -> None:
    with ThreadPool(2) as pool:
        assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
        assert pool.starmap(double, [(1,)]) == [2]
        later = pool.map_async(double, range(3))
        assert later.get() == later.get() == [0, 2, 4]
    taken, made = rows(recorder, names.BATCH_ROW), rows(recorder, names.MADE_ROW)
    assert [each["index"] >> 32 for each in taken] == sorted({each["task"] >> 32 for each in made})
    assert {each["index"] for each in taken} <= {each["task"] for each in made}
    assert len(made) == 5 + 1 + 3
    assert not doubts(recorder)


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_items_in_chunks_are_taken_one_by_one(recorder: Recorder, method: str) -> None:
    with ThreadPool(1) as pool:
        results = getattr(pool, method)(double, range(8), 3)
        assert isinstance(results, GeneratorType)
        assert list(results) == [0, 2, 4, 6, 8, 10, 12, 14]
    taken, made = rows(recorder, names.BATCH_ROW), rows(recorder, names.MADE_ROW)
    first = sorted(each["task"] for each in made if each["task"] < names.PART_OF_TASK)
    numbers = [number + names.PART_OF_TASK * part for number in first for part in range(3)][:8]
    assert [each["index"] for each in taken] == numbers
    assert sorted(each["task"] for each in made) == sorted(numbers)
    # Those behind the first of a task took no time: it had all of them.
    along = [each for each in made if each["task"] not in first]
    assert all(each["taken_ns"] == each["prepared_ns"] for each in along)
    assert not doubts(recorder)


def test_chunks_of_more_items_than_are_told_are_a_doubt(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MOST_PARTS", 2)
    with ThreadPool(2) as pool:
        assert list(pool.imap(double, range(6), 3)) == [0, 2, 4, 6, 8, 10]
    assert doubts(recorder) == ["chunked"]


def test_an_error_in_a_chunk_is_the_programs(recorder: Recorder) -> None:
    def fails(value: int) -> int:
        return 1 // (value - 4)

    with ThreadPool(1) as pool:
        results = pool.imap(fails, range(9), 3)
        assert [next(results) for _ in range(3)] == [-1, -1, -1]
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert [*results] == []  # as without iotrace: the generator has ended


def test_items_of_chunks_that_come_too_fast_are_followed_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LOOK_EVERY", 4)
    monkeypatch.setattr(tasks, "_FAST_NS", 10**12)
    with ThreadPool(1) as pool:
        assert list(pool.imap(double, range(64), 32)) == [2 * each for each in range(64)]
    assert len(rows(recorder, names.BATCH_ROW)) < 16


class Item:
    """What a task returns; it can be referred to weakly."""


def test_nothing_is_kept_alive_and_nothing_is_added(recorder: Recorder) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(Item)
        item = future.result()
        assert vars(item) == {}
        alive = weakref.ref(item)
        del future, item
    executor = weakref.ref(pool)
    del pool
    gc.collect()
    assert alive() is None
    assert executor() is None


def test_workers_are_pickled_by_their_names(recorder: Recorder) -> None:
    for module, name in ((concurrent.futures.process, "_process_worker"), (multiprocessing.pool, "worker")):
        sent = pickle.dumps(getattr(module, name))
        assert name.encode() in sent
        assert pickle.loads(sent) is getattr(module, name)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ThreadPool])
def test_tasks_that_come_too_fast_are_followed_no_longer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(tasks, "LOOK_EVERY", 4)
    monkeypatch.setattr(tasks, "_FAST_NS", 10**18)
    monkeypatch.setattr(executors, "_fast", set())
    with kind(1) as pool:
        ask = (lambda of: pool.submit(double, of).result()) if kind is ThreadPoolExecutor else None
        ask = ask or (lambda of: pool.apply_async(double, (of,)).get())
        assert [ask(each) for each in range(20)] == [2 * each for each in range(20)]
    assert 3 <= len(rows(recorder, names.BATCH_ROW)) <= 5
    assert doubts(recorder) == ["fast"]
    assert not tasks.running


def test_a_large_result_of_a_process_is_known_by_its_bytes(recorder: Recorder) -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    sender = workers.Worker(7, recorder)
    tasks.works_for_pool = False
    sender.sends_by(writer)
    for number, length in ((3, 2 << 20), (4, 10)):
        sender.begin(number, bytes, (length,))
        sender.end(number, whole=True)
        reading = threading.Thread(target=reader.recv_bytes)
        reading.start()
        writer.send_bytes(bytes(length))
        reading.join()
    (sent,) = rows(recorder, names.SENT_ROW)
    assert (sent["pool"], sent["item"], sent["bytes"]) == (7, 3, 2 << 20)
    made = rows(recorder, names.MADE_ROW)[0]
    assert made["prepared_ns"] <= sent["pickled_ns"] <= sent["sent_ns"]


LIBRARY = """
import asyncio, contextvars, functools

def read(key):
    return [key]

def fetch(pool, keys, call=read):
    for key in keys:
        pool.submit(functools.partial(contextvars.copy_context().run, call, key)).result()

async def awaited(pool, keys, call=read):
    for key in keys:
        await asyncio.get_running_loop().run_in_executor(pool, call, key)
"""


def of_library(package: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    exec(compile(LIBRARY, f"/x/site-packages/{package}/core.py", "exec"), known)
    return known


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each task is followed that is submitted."""
    found: list[bool] = []
    is_librarys = executors._is_librarys

    def asked(*args: Any) -> bool:
        found.append(not is_librarys(*args))
        return not found[-1]

    monkeypatch.setattr(executors, "_is_librarys", asked)
    return found


def on_its_own(pool: Any, package: str, *args: Any) -> None:
    """Have a library submit tasks on a thread of its own."""
    thread = threading.Thread(target=of_library(package)["fetch"], args=(pool, *args))
    thread.start()
    thread.join()


@pytest.mark.usefixtures("recorder")
def test_what_a_library_submits_for_itself_is_followed_no_further(followed: list[bool]) -> None:
    """As zarr reads each chunk of an access: nobody takes that from a loop."""
    with ThreadPoolExecutor(1) as pool:
        on_its_own(pool, "zarr", [1])
        # The program runs on that thread: it may take the results.
        of_library("zarr")["fetch"](pool, [2])
        # What it submits is the program's: the library decides on the number of threads alone.
        on_its_own(pool, "tqdm", [3], double)
        on_its_own(pool, "tqdm", [4], lambda key: key)
        # What the library makes feeds a loop.
        on_its_own(pool, "torchdata", [5])
    assert followed == [False, True, True, True, True]


def test_a_librarys_pool_is_looked_at_again_now_and_then(
    recorder: Recorder, followed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    is_librarys = callers.is_librarys
    monkeypatch.setattr(callers, "is_librarys", lambda frame: looked.append(1) or is_librarys(frame))
    monkeypatch.setattr(executors, "_FEW_TASKS", 4)
    with ThreadPoolExecutor(1) as pool:
        on_its_own(pool, "zarr", range(64))
        assert not any(followed)
        assert 4 < len(looked) <= 4 + 1 + 64 / 16
        for _ in range(32):
            pool.submit(double, 1).result()
    assert all(followed[-16:])  # soon it is known that the program has it, too
    assert len(rows(recorder, names.BATCH_ROW)) >= 16


def test_what_a_coroutine_waits_for_a_librarys_task_is_no_item(recorder: Recorder) -> None:
    event_loops.hook_futures(asyncio.futures, recorder)
    event_loops.hook_selectors(asyncio.selector_events, recorder)
    awaited = of_library("zarr")["awaited"]
    with ThreadPoolExecutor(1) as pool:
        thread = threading.Thread(target=asyncio.run, args=(awaited(pool, range(10)),))
        thread.start()
        thread.join()
        assert not rows(recorder, names.BATCH_ROW)
        asyncio.run(awaited(pool, range(10)))  # by the program
    assert len(rows(recorder, names.BATCH_ROW)) == 10
