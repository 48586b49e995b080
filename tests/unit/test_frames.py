"""Tests for reading where other threads are."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from functools import partial
from typing import Any

import pytest

from iotrace.agent.recording import frames
from iotrace.agent.recording.frames import places_from, places_of


def deep(levels: int, then: Any) -> Any:
    return deep(levels - 1, then) if levels else then()


@pytest.mark.parametrize("levels", [0, 1, 100, 190])
def test_all_callers_of_a_thread_are_found(levels: int) -> None:
    def walk() -> tuple[list[Any], list[Any], list[Any]]:
        frame: Any = sys._getframe()
        found, of_thread = places_from(frame), places_of(threading.get_ident())
        expected = []
        while frame is not None:
            expected.append((frame.f_code, frame.f_lineno, frame.f_lasti))
            frame = frame.f_back
        return expected, found, of_thread

    expected, found, of_thread = deep(levels, walk)
    assert [code for code, _, _ in found] == [code for code, _, _ in expected]
    assert found[1:] == expected[1:]  # it itself has gone on
    assert [code for code, _, _ in of_thread[-len(found) :]] == [code for code, _, _ in found]


def test_of_a_deep_stack_the_innermost_are_read() -> None:
    found = deep(frames._MOST_FRAMES + 50, lambda: places_from(sys._getframe()))
    assert len(found) == frames._MOST_FRAMES
    assert found[0][0].co_name == "<lambda>"


def test_a_thread_that_is_over_is_nowhere() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert places_of(thread.ident or 0) == []


def test_nothing_of_a_function_is_kept() -> None:
    """Else a file that the program drops stays open, and is not yet written."""

    class Dropped:
        pass

    begun, ends, kept = threading.Event(), threading.Event(), []

    def waits() -> None:
        dropped = Dropped()
        kept.append(weakref.ref(dropped))
        begun.set()
        ends.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    gc.disable()
    try:
        found = [places_of(thread.ident or 0) for _ in range(3)]
        ends.set()
        thread.join()
        assert kept[0]() is None
    finally:
        gc.enable()
    assert all("waits" in {code.co_name for code, _, _ in each} for each in found)


made_late = pytest.mark.skipif(not frames._MADE_LATE, reason="only 3.11 makes frames when they are asked for")


@made_late
@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_begins_while_frames_are_read(enabled: bool) -> None:
    """Else what it ends lets other threads run, and a frame is made that is over: a crash."""
    begun: list[bool] = []
    asking: list[bool] = []

    def note(phase: str, _: Any) -> None:
        if phase == "start":
            begun.append(bool(asking))

    def asks() -> list[list[int]]:
        asking.append(True)
        made = [[each] for each in range(100)]  # a collection of each, unless they are off
        asking.clear()
        return made

    before = gc.isenabled(), gc.get_threshold()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(1)
        (gc.enable if enabled else gc.disable)()
        assert len(frames._without_collecting(asks)) == 100
        assert gc.isenabled() is enabled
        assert True not in begun
        deep(100, lambda: places_from(sys._getframe()))
        assert gc.isenabled() is enabled
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before[1])
        (gc.enable if before[0] else gc.disable)()


@made_late
def test_an_error_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        frames._without_collecting(partial(divmod, 1, 0))
    assert gc.isenabled()
    assert frames._was == []


ATTACK = """
import gc, sys, threading
from iotrace.agent.recording.frames import places_of

class Ring:
    def __init__(self):
        self.me = self
    def __del__(self):
        for _ in range(200):
            pass

def leaf():
    ring, lists = Ring(), [[] for _ in range(20)]

def down(levels):
    return leaf() if levels == 0 else down(levels - 1)

gc.callbacks.append(lambda phase, info: [None for _ in range(3000)])
sys.setswitchinterval(0.0005)
main, samples = threading.get_ident(), []

def sample():
    while len(samples) < 20_000:
        samples.append(len(places_of(main)))

thread = threading.Thread(target=sample)
thread.start()
while thread.is_alive():
    for levels in (3, 9, 17):
        down(levels)
print(max(samples) > 10)
"""


def test_frames_that_end_meanwhile_do_not_crash() -> None:
    """Within two seconds, where each frame is asked for by itself in Python 3.11."""
    done = subprocess.run([sys.executable, "-c", ATTACK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
