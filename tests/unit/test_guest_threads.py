"""What the agent does in threads and coroutines of the program harms neither."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iotrace.agent.patching import undo_all
from iotrace.agent.pools import event_loops, tasks
from iotrace.agent.recording import borders
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.names import POSIX_VARIABLE


@pytest.fixture
def queue_class(tmp_path: Path) -> Iterator[type[Any]]:
    class Queue(asyncio.Queue):  # type: ignore[type-arg]
        def qsize(self) -> int:
            raise NotImplementedError

    event_loops.hook_queues(SimpleNamespace(Queue=Queue), Recorder(str(tmp_path)))
    yield Queue
    undo_all()


def test_a_queue_need_not_know_its_size(queue_class: Any) -> None:
    async def main() -> Any:
        queue = queue_class()
        queue.put_nowait(5)
        return await queue.get()

    assert asyncio.run(main()) == 5


def test_a_coroutine_that_is_dropped_while_it_awaits_an_item_dies_at_once(queue_class: Any) -> None:
    class Thing:
        pass

    async def main() -> bool:
        thing = Thing()
        known, queue = weakref.ref(thing), queue_class()

        async def take(_: Thing) -> None:
            await queue.get()

        waits = take(thing)
        waits.send(None)
        del thing, waits
        return known() is None

    assert asyncio.run(main())


def test_a_thread_of_the_program_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POSIX_VARIABLE, "on")
    monkeypatch.setattr(borders, "_find_waits", None)
    monkeypatch.setattr(tasks.current.thread, "lock_waits", None)
    monkeypatch.delitem(sys.modules, "ctypes", raising=False)
    assert tasks.begin_task()[-1] == 0
    assert "ctypes" not in sys.modules
