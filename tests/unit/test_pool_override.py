"""What a sweep's number of workers does to pools, and to those of others nothing."""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing.pool
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from iotrace.agent import bootstrap
from iotrace.agent.patching import undo_all
from iotrace.agent.pools import override
from iotrace.agent.recording.recorder import Recorder


@pytest.fixture(autouse=True)
def hooked(tmp_path: Path) -> Iterator[None]:
    recorder = Recorder(str(tmp_path))
    override.hook_pool(concurrent.futures.thread, recorder, 3)
    override.hook_pool(multiprocessing.pool, recorder, 3)
    yield
    undo_all()


class Mine(ThreadPoolExecutor):
    """A pool of the program's own class."""

    def __init__(self) -> None:
        super().__init__(1)


def test_pools_of_the_program_have_as_many_workers_as_a_sweep_asks_for() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(max_workers=8) as other, Mine() as mine:
        assert {one._max_workers, other._max_workers, mine._max_workers} == {3}
    with ThreadPool(1) as pool:
        assert pool._processes == 3  # type: ignore[attr-defined]


def test_pools_of_libraries_keep_theirs() -> None:
    made: dict[str, ThreadPoolExecutor] = {}
    source = "from concurrent.futures import ThreadPoolExecutor\nmade['pool'] = ThreadPoolExecutor(1)"
    exec(compile(source, concurrent.futures.thread.__file__, "exec"), {"made": made})
    assert made["pool"]._max_workers == 1


def test_what_is_hooked_is_what_is_known() -> None:
    assert set(bootstrap.OVERRIDDEN_POOLS) == set(override.POOLS)


def test_what_the_caller_holds_dies_as_ever() -> None:
    class Thing:
        pass

    thing = Thing()
    known = weakref.ref(thing)
    with ThreadPoolExecutor(1):
        del thing
        assert known() is None
