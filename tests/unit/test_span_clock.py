"""CPU time of spans on a made-up machine that preempts the thread at every possible instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotrace.agent.recording import spans, thread_clocks
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.names import KIND_ITEM

WORK_NS = 1_000_000
AWAY_NS = 50_000_000


class Machine:
    """One thread's clocks; each reading takes 1 us, and before the `preempted` one the thread is away."""

    def __init__(self, preempted: int) -> None:
        self.mono_ns = 10**12
        self.cpu_ns = 10**9
        self.switches = 0
        self.readings = 0
        self.preempted = preempted

    def run(self, duration_ns: int) -> None:
        if self.readings == self.preempted:
            self.mono_ns += AWAY_NS
            self.switches += 1
        self.readings += 1
        self.mono_ns += duration_ns
        self.cpu_ns += duration_ns

    def monotonic_ns(self) -> int:
        self.run(1_000)
        return self.mono_ns

    def thread_time_ns(self) -> int:
        self.run(1_000)
        return self.cpu_ns

    def getrusage(self, who: int) -> list[Any]:
        self.run(1_000)
        return [0] * 15 + [self.switches]


@pytest.mark.parametrize("how", ["timed", "region"])
def test_a_preemption_anywhere_is_no_cpu_time_and_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    preempted, readings = 0, 1
    while preempted < readings:
        machine = Machine(preempted)
        for name in ("monotonic_ns", "thread_time_ns", "getrusage"):
            for module in (spans, thread_clocks):
                monkeypatch.setattr(module, name, getattr(machine, name), raising=False)
        thread_clocks.after_fork_in_child()
        recorder = Recorder(str(tmp_path))
        work = spans.timed(recorder, machine.run, "work", KIND_ITEM)
        for _ in range(3):
            if how == "timed":
                work(WORK_NS)
            else:
                begun = spans.begin()
                machine.run(WORK_NS)
                spans.end_region(recorder, begun, "work")
        for span in recorder.spans:
            assert WORK_NS - 10_000 <= span[2] <= WORK_NS + 10_000, (preempted, recorder.spans)
        preempted, readings = preempted + 1, machine.readings
    monkeypatch.undo()
    thread_clocks.after_fork_in_child()
    assert readings > 10


@pytest.mark.parametrize(("between_ns", "readings"), [(0, 3), (2_000, 3), (10_000, 4)])
def test_a_reading_serves_a_span_that_begins_at_once_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between_ns: int, readings: int
) -> None:
    machine, faults, read = Machine(-1), 0, 0

    def getrusage(who: int) -> list[Any]:
        nonlocal read
        read += 1
        return [0] * 6 + [faults] + [0] * 9

    def work() -> None:
        nonlocal faults
        faults += 3
        machine.mono_ns += WORK_NS

    for name in ("monotonic_ns", "thread_time_ns"):
        for module in (spans, thread_clocks):
            monkeypatch.setattr(module, name, getattr(machine, name), raising=False)
    for module in (spans, thread_clocks):
        monkeypatch.setattr(module, "getrusage", getrusage)
    thread_clocks.after_fork_in_child()
    recorder = Recorder(str(tmp_path))
    measure, read = spans.timed(recorder, work, "work", KIND_ITEM), 0
    for _ in range(2):
        measure()
        machine.mono_ns += between_ns
    monkeypatch.undo()
    thread_clocks.after_fork_in_child()
    assert read == readings
    assert [span[8] for span in recorder.spans] == [3, 3]
