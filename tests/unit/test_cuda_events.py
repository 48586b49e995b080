"""The exposed wait by the device's events. There is no device here: `Device` stands in for torch.cuda.

It keeps a clock of its own and runs its queue in order, as a stream does; what is tested is our use of the
events, not CUDA's.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.agent.dataloader.cuda_events import CudaEvents
from iotrace.agent.recording.recorder import Recorder
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.wait.data_wait import NO_STEPS, ExposedWait, exposed_wait
from iotrace.session.names import EXPOSED_ROW
from tests.support.counting import instructions
from tests.support.rows import told
from tests.support.tables import steps_of


class Device(types.ModuleType):
    """A stand-in for ``torch.cuda``: `now_ms` is the host, `busy_until_ms` the end of the stream."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.now_ms = self.busy_until_ms = 0.0
        self.initialized, self.capturing, self.broken = True, False, False
        self.made = 0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.made += 1

            def record(self) -> None:
                self.at_ms = max(device.now_ms, device.busy_until_ms)

            def query(self) -> bool:
                if device.broken:
                    raise RuntimeError("CUDA error: device-side assert triggered")
                return self.at_ms <= device.now_ms

            def elapsed_time(self, end: Any) -> float:
                elapsed: float = end.at_ms - self.at_ms
                return elapsed

        self.Event = Event

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    stand_in = Device()
    monkeypatch.setitem(sys.modules, "torch.cuda", stand_in)
    return stand_in


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    made = Recorder(str(tmp_path))
    made.directory = str(tmp_path)
    return made


def wait(events: CudaEvents, device: Device, index: int, wait_ms: float, work_ms: float = 0) -> None:
    """A wait of the consumer's and then a step that gives the device `work_ms` of work."""
    start = events.begin()
    device.now_ms += wait_ms
    pair = events.end(start) if start is not None else None
    if pair is not None:
        events.keep(pair, (EXPOSED_ROW, 0, 0, index))
    device.busy_until_ms = max(device.now_ms, device.busy_until_ms) + work_ms


def exposed_ms(recorder: Recorder) -> dict[int, float]:
    return {record["index"]: record["exposed_ns"] / 1e6 for record in told(recorder.records)}


def test_work_that_still_runs_hides_the_wait(device: Device, recorder: Recorder) -> None:
    events = CudaEvents(recorder)
    wait(events, device, 0, wait_ms=10, work_ms=30)  # the device was idle: all of it is exposed
    wait(events, device, 1, wait_ms=20, work_ms=5)  # behind 30 ms of work: none
    wait(events, device, 2, wait_ms=20)  # 15 ms of work are left: 5 ms
    assert exposed_ms(recorder) == {0: 10, 2: 5} | {1: 0}
    wait(events, device, 3, wait_ms=1)
    assert device.made <= 8  # events are used again


def test_nothing_waits_for_the_device(device: Device, recorder: Recorder) -> None:
    events = CudaEvents(recorder)
    for index in range(200):
        wait(events, device, index, wait_ms=1, work_ms=1000)
    assert set(exposed_ms(recorder)) == {0}
    assert len(events._pending) <= 64
    device.now_ms = 1e9
    events.close()
    assert set(exposed_ms(recorder)) == {0} | set(range(136, 200))


def test_no_event_before_the_program_uses_the_device_nor_while_a_graph_is_captured(
    device: Device, recorder: Recorder
) -> None:
    events = CudaEvents(recorder)
    device.initialized = False
    wait(events, device, 0, wait_ms=1)
    device.initialized, device.capturing = True, True
    wait(events, device, 1, wait_ms=1)
    assert device.made == 0
    device.capturing = False
    start = events.begin()
    device.capturing = True
    assert events.end(start) is None


def test_an_error_of_the_device_is_logged_once_and_ends_it(
    device: Device, recorder: Recorder, tmp_path: Path
) -> None:
    events = CudaEvents(recorder)
    device.broken = True
    for index in range(3):
        wait(events, device, index, wait_ms=1)
    events.close()
    assert not recorder.records
    assert (tmp_path / "agent.log").read_text().count("device-side assert") == 1


def test_a_forked_child_leaves_its_parents_events_alone(device: Device, recorder: Recorder) -> None:
    events = CudaEvents(recorder)
    wait(events, device, 0, wait_ms=1, work_ms=100)
    pid = os.fork()
    if pid == 0:
        device.broken = True
        events.close()
        os._exit(0 if events.begin() is None and not events._failed else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_wait_makes_no_event_and_asks_the_device_once(device: Device, recorder: Recorder) -> None:
    """What it costs is measured by ``tools/bench agent``; here it is counted."""
    events = CudaEvents(recorder)
    for index in range(4):
        wait(events, device, index, wait_ms=1)
    made, executed = device.made, instructions(lambda: wait(events, device, 4, wait_ms=1))
    assert device.made == made  # events are used again
    counts = [instructions(lambda: wait(events, device, 5, wait_ms=1)) for _ in range(20)]
    assert set(counts) == {executed}  # however many waits there were
    assert executed < 700


def _step(wait_ns: int, exposed_ns: int | None, awaits: bool = True) -> Step:
    opened = Delivery(0, 0, 0, 0, 0, 0, 0)
    awaited = Delivery(0, 1, 0, 0, 1, 100 - wait_ns, 100, exposed_ns=exposed_ns)
    return Step(opened, 0, 100, (awaited,) if awaits else ())


def test_exposed_wait_is_the_mean_of_the_steps_that_know_it() -> None:
    steps = [_step(40, 10), _step(40, None), _step(40, 50), _step(0, None, awaits=False)]
    # 10, unknown, 50 cut to the wait's 40, and an epoch's last step, which waits for nothing.
    found = exposed_wait(steps_of(steps), accelerated=True)
    assert found.timed.tolist() == [[10, 100], [40, 100], [0, 100]]
    expected = ExposedWait(ms=50 / 3 / 1e6, fraction=50 / 300, source="cuda_events", steps=3, timed=NO_STEPS)
    assert replace(found, timed=NO_STEPS) == expected
    unknown = exposed_wait(steps_of([_step(40, None), _step(0, None, awaits=False)]), True)
    assert unknown.ms is None
    assert not len(unknown.timed)
    found = exposed_wait(steps_of(steps[:2]), accelerated=False)
    assert found.timed.tolist() == [[40, 100]] * 2
    assert replace(found, timed=NO_STEPS) == ExposedWait(40 / 1e6, 0.4, "cpu", 2, NO_STEPS)
