"""What computes without a step is told once it was three times in one place; what gets on is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iotrace.launch.telemetry.hangs import blocked, watch
from iotrace.launch.telemetry.hangs.telling import sentence_of_busy
from iotrace.session import names
from iotrace.session.hangs import COMPUTING, Hang
from tests.unit.test_hang import MAIN, SECOND, WORKER, Machine

MAIN_FRAME = 'File "train.py", line 30 in <module>'
C10D = 'File "x/torch/distributed/distributed_c10d.py", line 9 in barrier'


def item(line: int) -> str:
    return f'File "train.py", line {line} in __getitem__'


class Busy(Machine):
    """A machine of which one process computes: `stack` is what it is in, `asked` how often it said so."""

    def __init__(self, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(session, monkeypatch)
        self.pid = WORKER
        self.asked = 0
        self.stack: Callable[[], list[str]] = lambda: [item(17 + self.asked % 2), MAIN_FRAME]
        self.looks[WORKER] |= {"state": "R", "wchan": None, "call": None}
        for pid, records in self.records.items():
            self.write(pid, {"type": "stacks", "signal": 63, "descriptor": 900})
            (records.parent / names.STACKS).touch()
        monkeypatch.setattr(blocked, "ask_for_stacks", self._ask)
        monkeypatch.setattr(blocked, "read_stack", lambda _, offset: (self.stack(), offset + 100))

    def _ask(self, pid: int, directory: str, stacks: tuple[int, int], written: int) -> bool:
        if pid != self.pid:
            return False
        self.asked += 1
        self.activity[pid][1] += 100  # it wrote them
        return True

    def seconds(self, count: int) -> list[dict[str, Any]]:
        told = []
        for _ in range(count):
            self.activity[self.pid][0] += SECOND
            told += super().seconds(1)
        return told


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Busy:
    return Busy(tmp_path, monkeypatch)


def test_a_sample_that_never_ends_is_told_once(machine: Busy) -> None:
    machine.batches(40)
    assert machine.seconds(59) == []
    assert machine.asked == 0
    (told,) = machine.seconds(100)
    assert told["kind"] == COMPUTING
    assert told["text"][0].startswith("COMPUTING WITHOUT A STEP: no batch for ")
    assert told["text"][1].startswith(f'  worker 0 (pid {WORKER}) computes, file "train.py", line 1')
    assert machine.asked == watch.DUMPS
    machine.batches(1)
    assert machine.seconds(300) == []


def test_a_step_that_never_ends_is_told(machine: Busy) -> None:
    machine.pid = MAIN
    machine.looks[WORKER] = {"state": "S", "wchan": "futex_wait_queue", "call": "futex", "file": None}
    machine.looks[MAIN] |= {"state": "R", "wchan": None, "call": None}
    machine.batches(40)
    (told,) = machine.seconds(100)
    assert told["text"][1] == f"  training (pid {MAIN}) computes, {item(18)}".replace("File", "file")


def test_a_long_step_that_ends_is_not_told(machine: Busy) -> None:
    machine.batches(40)
    for _ in range(5):
        assert machine.seconds(65) == []
        machine.batches(1)


def test_steps_that_became_slow_are_given_20_of_them(machine: Busy) -> None:
    machine.batches(10)
    for _ in range(15):
        assert machine.seconds(20) == []
        machine.batches(1)
    assert machine.seconds(390) == []
    assert machine.seconds(100)


@pytest.mark.parametrize("batches", [0, 4])
def test_never_before_the_fifth_batch(machine: Busy, batches: int) -> None:
    machine.batches(batches)
    assert machine.seconds(300) == []


def test_never_in_a_validation(machine: Busy) -> None:
    machine.batches(40, grad=0)
    assert machine.seconds(300) == []
    assert machine.asked == 0


@pytest.mark.parametrize(
    "frame",
    [
        'File "/v/torch/_inductor/graph.py", line 3 in run',
        'File "/v/torch/serialization.py", line 3 in _save',
        'File "train.py", line 3 in save_checkpoint',
        'File "train.py", line 3 in validate',
        'File "train.py", line 3 in runEval',
    ],
)
def test_never_while_it_compiles_saves_or_validates(machine: Busy, frame: str) -> None:
    machine.stack = lambda: [item(17), frame, MAIN_FRAME]
    machine.batches(40)
    assert machine.seconds(300) == []


def test_a_process_that_is_somewhere_else_each_time_gets_on(machine: Busy) -> None:
    machine.stack = lambda: [f'File "train.py", line 4 in part_{machine.asked}', MAIN_FRAME]
    machine.batches(40)
    assert machine.seconds(600) == []
    assert machine.asked == watch.MOST_DUMPS


def test_a_process_that_records_samples_or_passes_gets_on(machine: Busy) -> None:
    machine.batches(40)
    spans = machine.records[WORKER].parent / names.SPANS
    for count in range(100):
        spans.write_bytes(bytes(72 * count))
        assert machine.seconds(3) == []


@pytest.mark.parametrize(("pid", "grows", "by"), [(WORKER, 1, 4096), (MAIN, 1, 4096), (MAIN, 2, 9)])
def test_what_reads_writes_or_wakes_meanwhile_lives(machine: Busy, pid: int, grows: int, by: int) -> None:
    machine.batches(40)
    for _ in range(40):
        machine.activity[pid][grows] += by
        assert machine.seconds(5) == []


def test_a_process_that_sleeps_beside_it_goes_on(machine: Busy) -> None:
    machine.looks[MAIN]["call"] = "clock_nanosleep"
    machine.batches(40)
    assert machine.seconds(300) == []


def test_under_a_debugger_nothing_is_told(machine: Busy) -> None:
    machine.traced = True
    machine.batches(40)
    assert machine.seconds(300) == []


@pytest.mark.parametrize(
    ("stacks", "depth"),
    [
        ([[item(1), MAIN_FRAME]] * 3, 2),
        ([[item(1), MAIN_FRAME], [item(2), MAIN_FRAME], [item(9), MAIN_FRAME]], 2),
        ([[item(1), MAIN_FRAME], [item(1), MAIN_FRAME]], 0),  # two dumps
        # A function that is called in a loop: deeper now and then, from one line.
        ([[item(1), MAIN_FRAME], [MAIN_FRAME], [MAIN_FRAME]], 1),
        # Called from another line: it goes on.
        ([[item(1), MAIN_FRAME], [item(1), MAIN_FRAME], [item(1), MAIN_FRAME.replace("30", "31")]], 0),
        ([[item(1), MAIN_FRAME], [item(1), MAIN_FRAME], [MAIN_FRAME.replace("30", "31")]], 0),
        # Frames of libraries may differ.
        ([[f'File "/v/site-packages/np.py", line {n} in f{n}', item(1)] for n in range(3)], 1),
        ([[], [], []], 0),
    ],
)
def test_one_place_is_the_same_calls_from_the_same_lines(stacks: list[list[str]], depth: int) -> None:
    assert len(watch.place(stacks)) == depth


def test_words_of_a_process_that_computes() -> None:
    about = {"role": "rank 0", "stack": [C10D, MAIN_FRAME]}
    own = MAIN_FRAME.replace("File", "file")
    assert sentence_of_busy(about, [MAIN_FRAME], False) == (
        f"waits for other ranks in barrier, on a CPU, {own}"
    )
    assert (
        sentence_of_busy({"role": "training"}, [MAIN_FRAME], True)
        == f"computes or waits for its device, {own}"
    )


def test_the_kernel_says_how_long_a_thread_wanted_a_cpu() -> None:
    before = blocked.wanted_cpu_ns(os.getpid())
    sum(range(2_000_000))
    after = blocked.wanted_cpu_ns(os.getpid())
    assert before is not None
    assert after is not None
    assert after > before
    assert blocked.wanted_cpu_ns(0) is None
    assert not blocked.uses_device(0)


def test_an_older_record_is_a_hang() -> None:
    assert Hang(mono_ns=0, waited_ns=1).kind == "hung"
