"""Which threads wait for a lock, and where: their frames tell."""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iotrace.agent.recording import lock_waits, thread_clocks
from iotrace.agent.recording.frames import places_of
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names

LOCKS = {
    "lock": threading.Lock(),
    "rlock": threading.RLock(),
    "condition": threading.Condition(),
    "semaphore": threading.Semaphore(),
}


def begins_with(lock: Any) -> None:
    with lock:
        pass


def acquires(lock: Any) -> None:
    lock.acquire()
    lock.release()


def acquires_for(lock: Any) -> None:
    if lock.acquire(timeout=60):
        lock.release()


class Started:
    """A thread that runs a call until it sleeps there."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.thread = threading.Thread(target=call, args=args, daemon=True)
        self.thread.start()

    def places(self) -> Any:
        return places_of(self.thread.ident or 0)

    def sleeps_in(self, names: tuple[str, ...]) -> str:
        """Wait until it is in a function of one of these names, and return what is told of it."""
        found = ""
        for _ in range(1000):
            found = lock_waits._lock_of(self.places())
            if found or self.places()[0][0].co_name in names:
                return found
            time.sleep(0.01)
        return found


@pytest.fixture(params=LOCKS)
def taken(request: pytest.FixtureRequest) -> Iterator[Any]:
    lock: Any = LOCKS[request.param]
    lock.acquire()
    yield lock
    lock.release()


@pytest.mark.parametrize("take", [begins_with, acquires, acquires_for])
def test_a_thread_that_takes_a_lock_says_where(taken: Any, take: Callable[[Any], None]) -> None:
    found = Started(take, taken).sleeps_in(())
    file, _, line = found.removeprefix(names.LOCK_AT).removeprefix(":").rpartition(":")
    assert file == take.__code__.co_filename
    assert int(line) == take.__code__.co_firstlineno + 1


def test_a_thread_that_waits_for_an_item_takes_no_lock() -> None:
    event, items = threading.Event(), queue.Queue[int]()
    for wait in (event.wait, items.get):
        assert Started(wait).sleeps_in(("wait",)) == ""
    event.set()
    items.put(1)


def recorded(recorder: Recorder) -> list[str]:
    rows = [row for row in recorder.records if isinstance(row, tuple) and row[0] == names.LOCKED_ROW]
    texts = {number: text for text, number in recorder._texts.items()}
    return [texts[row[5]] for row in rows]


def until_seen(recorder: Recorder, prefix: str) -> str:
    """Look at the threads until one waits so."""
    looks = lock_waits.LockWaits(recorder)
    for _ in range(2000):
        looks.look(threading.get_ident(), places_of(threading.get_ident()))
        found = [text for text in recorded(recorder) if text.startswith(prefix)]
        if found:
            return found[0]
        time.sleep(0.05)
    return ""


@pytest.mark.skipif(not os.path.exists(f"/proc/self/task/{os.getpid()}/syscall"), reason="not told")
def test_a_thread_that_reads_a_pipe_waits_for_its_writer(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def reads() -> None:
        os.read(reader, 1)

    thread = Started(reads)
    found = until_seen(Recorder(str(tmp_path)), names.PEER_AT)
    os.write(writer, b"a")
    thread.thread.join()
    assert found.startswith(f"{names.PEER_AT}pipe:{__file__}:")


def test_a_thread_that_runs_a_program_waits_for_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, False)

    def runs() -> None:
        subprocess.run(["cat"], stdin=reader, stdout=subprocess.PIPE, check=False)

    thread = Started(runs)
    found = until_seen(Recorder(str(tmp_path)), names.PEER_AT)
    os.close(writer)
    thread.thread.join()
    assert found.startswith(f"{names.PEER_AT}child process:{__file__}:")


def test_a_thread_that_reads_a_socket_with_a_timeout_does_so_too(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    one.settimeout(60)
    file = one.makefile("rb")

    def reads() -> None:
        file.read(1)

    thread = Started(reads)
    found = until_seen(Recorder(str(tmp_path)), names.PEER_AT)
    other.send(b"a")
    thread.thread.join()
    assert found.startswith(f"{names.PEER_AT}socket:{__file__}:")


def test_threads_that_wait_for_each_other_in_a_library_wait_for_its_lock(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "d.db", check_same_thread=False)
    connection.execute("create table t (a)")
    connection.executemany("insert into t values (?)", ((each,) for each in range(20_000)))
    over = threading.Event()

    def asks() -> None:
        while not over.is_set():
            connection.execute("select sum(a) from t where a % 7 = 1").fetchone()

    threads = [Started(asks) for _ in range(4)]
    found = until_seen(Recorder(str(tmp_path)), names.LOCK_AT + names.OF_LIBRARY)
    over.set()
    for each in threads:
        each.thread.join()
    assert found.startswith(f"{names.LOCK_AT}{names.OF_LIBRARY}:{__file__}:")


def test_idle_takers_of_one_queue_wait_for_no_lock(tmp_path: Path) -> None:
    items = queue.SimpleQueue[int]()

    def takes() -> None:
        items.get()

    threads = [Started(takes) for _ in range(3)]
    recorder = Recorder(str(tmp_path))
    looks = lock_waits.LockWaits(recorder)
    for _ in range(20):
        looks.look(threading.get_ident(), places_of(threading.get_ident()))
        time.sleep(0.05)
    for _ in threads:
        items.put(1)
    assert not [text for text in recorded(recorder) if __file__ in text]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no call of its own")
def test_a_thread_that_sleeps_for_a_time_says_where(tmp_path: Path) -> None:
    over = threading.Event()

    def naps() -> None:
        while not over.is_set():
            time.sleep(0.5)

    thread = Started(naps)
    found = until_seen(
        Recorder(str(tmp_path)), f"{names.SLEEP_AT}:{__file__}:{naps.__code__.co_firstlineno + 2}"
    )
    over.set()
    thread.thread.join()
    assert found


def test_threads_that_python_did_not_start_are_looked_at(tmp_path: Path) -> None:
    lock, tids = threading.Lock(), dict(thread_clocks.tids)
    lock.acquire()

    def takes() -> None:
        thread_clocks.thread_id()  # as what records a call there
        lock.acquire()

    _thread.start_new_thread(takes, ())
    found = until_seen(Recorder(str(tmp_path)), names.LOCK_AT)
    lock.release()
    assert thread_clocks.tids != tids  # Python may give the number of one that is over again
    assert found.startswith(f"{names.LOCK_AT}:{__file__}:")


@pytest.mark.skipif(not os.path.exists(f"/proc/self/task/{os.getpid()}/syscall"), reason="not told")
def test_an_event_loop_that_waits_says_who_runs_it(tmp_path: Path) -> None:
    over = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def waits() -> None:
        loops.append(asyncio.get_running_loop())
        await over.wait()

    def runs() -> None:
        asyncio.run(waits())

    thread = Started(runs)
    found = until_seen(Recorder(str(tmp_path)), f"{names.IDLE_AT}{__file__}")
    loops[0].call_soon_threadsafe(over.set)
    thread.thread.join()
    assert found == f"{names.IDLE_AT}{__file__}:{runs.__code__.co_firstlineno + 1}"
