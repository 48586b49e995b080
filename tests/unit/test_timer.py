"""`iotrace.Timer`: arithmetic on a clock of the test's own, without torch and without a run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import iotrace
from iotrace import timing
from iotrace.errors import UsageError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock in ms, which the test sets."""
    made = SimpleNamespace(ms=0)
    monkeypatch.setattr(timing, "monotonic_ns", lambda: made.ms * 1_000_000)
    return made


def test_keys_nest_and_overlap(clock: Any) -> None:
    timer = iotrace.Timer()
    for start in (0, 100):
        clock.ms = start
        timer.start("Batch")
        clock.ms += 10
        timer.start("IO")
        timer.start("IO")  # within itself
        clock.ms += 5
        timer.end("IO")
        clock.ms += 5
        timer.end("Batch")  # before what began within it
        clock.ms += 10
        timer.end("IO")
    times = timer.times()
    assert list(times) == ["Batch", "IO"]
    assert times["Batch"] == (2, 40.0, 20.0, 20.0, 20.0, 20.0)
    assert (times["IO"].calls, times["IO"].total_ms, times["IO"].max_ms) == (4, 2 * (5 + 20), 20.0)


def test_contexts_decorators_and_errors(clock: Any) -> None:
    timer = iotrace.Timer()

    @timer("Forward")
    def forward(ms: int) -> int:
        clock.ms += ms
        if ms > 5:
            raise ValueError(ms)
        return ms

    assert (forward(3), forward.__name__) == (3, "forward")
    with pytest.raises(ValueError, match="7"):
        forward(7)
    with timer("Other"):
        clock.ms += 1
    timer.end("never begun")
    assert {key: times.total_ms for key, times in timer.times().items()} == {"Forward": 10.0, "Other": 1.0}


def test_threads_end_their_own(clock: Any) -> None:
    timer = iotrace.Timer()
    timer.start("IO")
    other = threading.Thread(target=timer.end, args=("IO",))
    other.start()
    other.join()
    assert timer.times() == {}
    clock.ms = 4
    timer.end("IO")
    assert timer.times()["IO"].total_ms == 4.0


def test_a_device_is_waited_for_when_times_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Event:
        made = 0

        def __init__(self, enable_timing: bool) -> None:
            Event.made += 1
            self.at = Event.made

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            waited.append(self.at)

        def elapsed_time(self, other: Event) -> float:
            return float(other.at - self.at)

    monkeypatch.setattr(timing, "_cuda", lambda: SimpleNamespace(Event=Event))
    timer = iotrace.Timer(device="cuda")
    with timer("Backward"):
        pass
    assert not waited
    assert timer.times()["Backward"].total_ms == 1.0
    assert waited == [2]


def test_a_device_that_is_none_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="unknown"):
        iotrace.Timer(device="abacus")


@pytest.mark.parametrize("variable", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_its_rank_is_what_any_launcher_says(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert iotrace.Timer().rank == 0
    monkeypatch.setenv(variable, "3")
    assert iotrace.Timer().rank == 3
    monkeypatch.setenv(variable, "none")  # no number: not known
    assert iotrace.Timer().rank == 0
