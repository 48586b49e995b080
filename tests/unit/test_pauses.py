"""What is recorded of Python's garbage collector: by a callback that runs no bytecode."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from iotrace.agent import patching
from iotrace.agent.recording import pauses
from iotrace.agent.recording.recorder import Recorder as RealRecorder
from iotrace.session.names import PAUSE_ROW, PAUSES


class Recorder:
    """Keeps rows; the writer of a real one calls what is in `before_flush`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.before_flush: list[Any] = []
        self.records: list[dict[str, Any]] = []

    def append_row(self, row: tuple[int, ...]) -> None:
        self.rows.append(row)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(pauses, "_LEAST_NS", 0)
    own = Recorder()
    pauses.watch_collections(own)  # type: ignore[arg-type]
    yield own
    pauses._leave()


def test_each_collection_is_a_row(recorder: Recorder) -> None:
    recorder.before_flush[0]()
    recorder.rows.clear()
    gc.collect()
    recorder.before_flush[0]()
    assert recorder.rows
    for kind, what, tid, start_ns, end_ns in recorder.rows:
        assert (kind, what, tid) == (PAUSE_ROW, 0, -1)
        assert start_ns <= end_ns


def test_the_callback_runs_no_bytecode(recorder: Recorder) -> None:
    frames: list[str] = []

    def seen(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            frames.append(frame.f_code.co_filename)

    sys.setprofile(seen)
    try:
        gc.collect()
    finally:
        sys.setprofile(None)
    assert not [name for name in frames if "iotrace" in name]


def test_a_handler_that_raises_hits_none_of_it(recorder: Recorder) -> None:
    class InterruptedHereError(Exception):
        pass

    def handler(*_: Any) -> None:
        raise InterruptedHereError

    before = signal.signal(signal.SIGALRM, handler)
    # Python discards what a handler raises in another's callback (hypothesis has one).
    others = [each for each in gc.callbacks if each is not pauses._stamps.callback]  # type: ignore[union-attr]
    gc.callbacks[:] = [each for each in gc.callbacks if each not in others]
    gc.collect()  # nor in a finalizer: no test before this one leaves any to be run below
    raised = 0
    try:
        for _ in range(50):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(200):
                    gc.collect(0)
                time.sleep(5)
            except InterruptedHereError as error:
                raised += 1
                names = []
                step = error.__traceback__
                while step is not None:
                    names.append(step.tb_frame.f_code.co_filename)
                    step = step.tb_next
                assert set(names) == {__file__}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.extend(others)
    assert raised == 50


def test_stamps_without_their_other_half_make_no_row(recorder: Recorder) -> None:
    assert pauses._stamps is not None
    gc.callbacks.remove(pauses._stamps.callback)  # the program's own collections bring no stamps here
    try:
        started, stopped = pauses._stamps.started, pauses._stamps.stopped
        started.clear()
        stopped.clear()
        started.extend([10, 20, 40])  # 10: nobody saw the end; 40 is still open
        stopped.extend([5, 25])  # 5: nobody saw the beginning
        recorder.rows.clear()
        recorder.before_flush[0]()
        assert recorder.rows == [(PAUSE_ROW, 0, -1, 20, 25)]
        assert list(started) == [40]
        stopped.append(50)
        recorder.before_flush[0]()
        assert recorder.rows[1:] == [(PAUSE_ROW, 0, -1, 40, 50)]
    finally:
        gc.callbacks.append(pauses._stamps.callback)


def test_it_is_taken_back_and_made_once(recorder: Recorder) -> None:
    assert pauses._stamps is not None
    own = pauses._stamps.callback
    pauses.watch_collections(recorder)  # type: ignore[arg-type]
    assert gc.callbacks.count(own) == 1
    assert len(recorder.before_flush) == 1
    pauses._leave()
    assert own not in gc.callbacks
    assert not pauses.watching()


def test_without_the_interpreters_lock_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    before, own = list(gc.callbacks), Recorder()
    pauses.watch_collections(own)  # type: ignore[arg-type]
    assert list(gc.callbacks) == before
    assert not own.before_flush


def test_objects_are_counted_once_collecting_took_long(recorder: Recorder) -> None:
    (first,) = recorder.records
    assert first["type"] == "collector"
    assert "objects" not in first
    stamps = pauses._stamps
    assert stamps is not None
    stamps.told_ns = 10**15  # whatever the machine takes for it
    gc.collect()
    recorder.before_flush[0]()
    assert [each for each in recorder.records if isinstance(each, dict)] == [first]
    stamps.told_ns = pauses._TOLD_NS
    stamps.collected_ns = pauses._TOLD_NS
    for _ in range(2):
        recorder.before_flush[0]()
    counted = [each for each in recorder.records if isinstance(each, dict)][1:]
    assert len(counted) == 1  # and not again before it is four times as long
    assert counted[0]["objects"] > 0
    assert counted[0]["frozen"] == gc.get_freeze_count()
    assert counted[0]["collections"][2] > first["collections"][2]
    stamps.looked_ns = 1  # so much more was collected since
    recorder.before_flush[0]()
    (look,) = [each for each in recorder.records if isinstance(each, dict)][2:]
    assert look["type"] == "collector"
    assert "objects" not in look


class Monitoring(ModuleType):
    """As ``jax.monitoring``."""

    def __init__(self) -> None:
        super().__init__("jax.monitoring")
        self.listeners: list[Any] = []
        self.register_event_duration_secs_listener = self.listeners.append

    def unregister_event_duration_listener(self, listener: Any) -> None:
        assert listener in self.listeners
        self.listeners.remove(listener)


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitoring]:
    library = Monitoring()
    monkeypatch.setitem(sys.modules, "jax.monitoring", library)
    yield library
    patching.undo_all()


def test_what_jax_compiles_is_a_row_of_its_thread(monitoring: Monitoring, tmp_path: Path) -> None:
    recorder = RealRecorder(str(tmp_path))
    pauses.watch_jax(recorder)
    (listener,) = monitoring.listeners
    listener("/jax/core/compile/backend_compile_duration", 0.25, fun_name="step")
    listener("/jax/core/compile/jaxpr_trace_duration", 1e-6)
    listener("/jax/compilation_cache/compile_time_saved_sec", 3.0)
    ((kind, what, tid, start_ns, end_ns),) = recorder.records
    assert (kind, PAUSES[what], tid) == (PAUSE_ROW, "jit", threading.get_native_id())
    assert end_ns - start_ns == 250_000_000
    assert 0 <= time.monotonic_ns() - end_ns < 10**9
    recorder.pause()


def test_jax_is_left_as_it_was(monitoring: Monitoring, tmp_path: Path) -> None:
    for removed in (False, True):
        pauses.watch_jax(RealRecorder(str(tmp_path)))
        if removed:  # by the program: `clear_event_listeners`
            monitoring.listeners.clear()
        patching.undo_all()
        assert monitoring.listeners == []


def test_an_error_of_ours_is_none_of_jax(monitoring: Monitoring, tmp_path: Path) -> None:
    recorder: Any = RealRecorder(str(tmp_path))
    pauses.watch_jax(recorder)
    absorbed: list[Exception] = []
    recorder.records, recorder.absorb = None, lambda error, _: absorbed.append(error)
    monitoring.listeners[0]("/jax/core/compile/backend_compile_duration", 0.25)
    assert len(absorbed) == 1


def test_an_old_jax_without_that_is_passed_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jax.monitoring", ModuleType("jax.monitoring"))
    pauses.watch_jax(RealRecorder(str(tmp_path)))
