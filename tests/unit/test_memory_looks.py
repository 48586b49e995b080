"""When the sidecar adds up the memory of processes: rarely, and once with all workers of a short run."""

from __future__ import annotations

import os

import pytest

from iotrace.launch.telemetry import system
from iotrace.launch.telemetry.system import Memory

_SECOND = 1_000_000_000


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The clocks that `Memory` asks: they stand until a test moves them."""
    clocks = {"now": 0, "cpu": 0}
    monkeypatch.setattr(system.time, "monotonic_ns", lambda: clocks["now"])
    monkeypatch.setattr(system.time, "thread_time_ns", lambda: clocks["cpu"])
    return clocks


def _seen(memory: Memory, clocks: dict[str, int], processes: int, until_s: int) -> list[int]:
    """The seconds up to `until_s` at which so many processes were looked at."""
    found = []
    for second in range(clocks["now"] // _SECOND, until_s):
        clocks["now"] = second * _SECOND
        if memory.read((number, os.getpid()) for number in range(processes)) is not None:
            found.append(second)
    clocks["now"] = until_s * _SECOND
    return found


def test_all_workers_are_looked_at_soon_after_they_started(looks: dict[str, int]) -> None:
    memory = Memory()
    assert _seen(memory, looks, 1, 5) == [2]
    assert _seen(memory, looks, 5, 30) == [7, 17, 27]
    assert _seen(memory, looks, 3, 40) == [37]  # fewer processes are nothing new


def test_a_dear_look_is_not_repeated_at_once(looks: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of 100 ms rests for 10 s, also where processes are added."""

    def dear(number: int, pid: int) -> tuple[int, ...]:
        looks["cpu"] += _SECOND // 10
        return number, pid

    monkeypatch.setattr(system, "_process", dear)
    memory = Memory()
    assert _seen(memory, looks, 1, 3) == [2]
    assert _seen(memory, looks, 2, 20) == [12]
