"""What hooks take by themselves is timed now and then, by the thread's CPU clock, and told as a sum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from iotrace.agent import patching
from iotrace.agent.patching import TIMED_EVERY, undo_all
from iotrace.agent.readpaths import hooks
from iotrace.agent.readpaths.table import Row
from iotrace.agent.recording import spans
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names

COST_NS = 5_000


class Clock:
    """The thread's CPU clock: what a test spends is what passes."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def __call__(self) -> int:
        return self.now_ns

    def spend(self, *_: Any) -> None:
        self.now_ns += COST_NS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    for module in (patching, spans):
        monkeypatch.setattr(module, "thread_time_ns", found)
    yield found
    undo_all()


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder(str(tmp_path))
    monkeypatch.setattr(found, "start", lambda: None)
    return found


def told_ns(recorder: Recorder) -> int:
    """The sum that the next row tells of this thread; 0 where none has changed."""
    rows = recorder.own_times.rows()
    assert all(kind == names.OWN_ROW for kind, *_ in rows)
    return sum(own_ns for *_, own_ns in rows)


def library(**calls: Any) -> Any:
    module = ModuleType("library")
    for name, call in calls.items():
        setattr(module, name, call)
    return module


def test_a_hook_that_records_nothing_is_told_of_by_its_calls(recorder: Recorder, clock: Clock) -> None:
    sampled = recorder.own_times.sampled
    module = library(dear=lambda: None, cheap=lambda: None, own=clock.spend)
    patching.observe(module, "dear", recorder, "", after=sampled(clock.spend))
    patching.observe(module, "cheap", recorder, "", after=sampled(lambda *_: None))
    patching.observe(
        module, "own", recorder, "", before=sampled(lambda *_: None), after=sampled(lambda *_: None)
    )
    for _ in range(TIMED_EVERY - 1):
        module.dear()
    assert told_ns(recorder) == 0
    for _ in range(2 * TIMED_EVERY):
        module.cheap()
        module.own()  # what the library's own code takes is no cost of ours
    assert told_ns(recorder) == 0
    module.dear()
    assert told_ns(recorder) == TIMED_EVERY * COST_NS
    assert told_ns(recorder) == 0  # nothing new
    for _ in range(TIMED_EVERY):
        module.dear()
    assert told_ns(recorder) == 2 * TIMED_EVERY * COST_NS


def test_what_a_part_of_a_hook_raises_is_timed_and_kept(recorder: Recorder, clock: Clock) -> None:
    def fail(*_: Any) -> None:
        clock.spend()
        raise ValueError

    module = library(call=lambda: 1)
    patching.observe(module, "call", recorder, "", after=recorder.own_times.sampled(fail))
    recorder.log = lambda message: None  # type: ignore[method-assign]
    assert [module.call() for _ in range(TIMED_EVERY)] == [1] * TIMED_EVERY
    assert told_ns(recorder) == TIMED_EVERY * COST_NS


@pytest.mark.parametrize("dear", [False, True])
def test_what_is_found_out_about_a_call_is_told_beside_its_span(
    recorder: Recorder, clock: Clock, dear: bool
) -> None:
    def find(*_: Any) -> str:
        if dear:
            clock.spend()
        return "a.bin"

    module = library(read=lambda: clock.spend() or b"12")
    hooks.hook(module, Row("library", "read", find), recorder)
    for _ in range(3 * TIMED_EVERY):
        module.read()
    assert len(recorder.spans) == 3 * TIMED_EVERY
    assert told_ns(recorder) == (3 * TIMED_EVERY * COST_NS if dear else 0)


def test_calls_that_are_passed_on_are_counted(recorder: Recorder, clock: Clock) -> None:
    module = library(loads=lambda data: data, load=lambda thing: thing)
    hooks.hook(module, Row("library", "loads", least=10), recorder)
    hooks.hook(module, Row("library", "load", skip=lambda args: args[0].done), recorder)
    for _ in range(30):
        module.loads(b"1")
        module.load(SimpleNamespace(done=True))
    assert not recorder.spans
    assert told_ns(recorder) == 2 * 30 * hooks._PASSED_NS
    assert told_ns(recorder) == 0
    module.loads(b"1")
    assert told_ns(recorder) == (2 * 30 + 1) * hooks._PASSED_NS
    module.loads(b"1")
    recorder.own_times.clear()  # of a child, what its parent has counted is no call
    assert told_ns(recorder) == 0


def test_a_child_begins_anew(recorder: Recorder) -> None:
    recorder.own_times.add_ns(7)
    assert told_ns(recorder) == 7
    recorder.own_times.clear()
    recorder.own_times.add_ns(7)
    assert told_ns(recorder) == 7
