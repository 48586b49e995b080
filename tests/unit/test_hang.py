"""A hang is told once, and only where nothing could make a batch any more."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from iotrace.launch.telemetry import blocked
from iotrace.launch.telemetry.hang import HangWatch
from iotrace.launch.telemetry.progress import Progress
from iotrace.launch.telemetry.tree import Tree
from iotrace.session import names
from iotrace.session.hangs import hangs_of

MAIN, WORKER = 100, 101
SECOND = 1_000_000_000


class Machine:
    """Two processes as /proc would show them, and what their agents write."""

    def __init__(self, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000
        self.activity = {MAIN: [0, 0, 0], WORKER: [0, 0, 0]}
        self.looks: dict[int, dict[str, Any]] = {
            MAIN: {"state": "S", "wchan": "do_poll", "call": "poll", "file": None},
            WORKER: {"state": "S", "wchan": "futex_wait_queue", "call": "futex", "file": None},
        }
        self.traced = False
        self.records = {}
        for pid in self.looks:
            directory = session / names.PROCESSES / f"{pid}-1-{os.uname().nodename}"
            directory.mkdir(parents=True)
            self.records[pid] = directory / names.RECORDS
        self.write(WORKER, {"type": "worker", "worker": 0, "count": 1, "mono_ns": 0})
        member = SimpleNamespace(launch=str(session), is_the_same=lambda: True)
        tree = cast(Tree, SimpleNamespace(members={MAIN: member, WORKER: member}))
        monkeypatch.setattr(blocked, "parent_of", {MAIN: 1, WORKER: MAIN}.__getitem__)
        monkeypatch.setattr(blocked, "is_traced", lambda _: self.traced)
        monkeypatch.setattr(blocked, "look_at", lambda pid, known: {**self.looks[pid], "pid": pid, **known})
        monkeypatch.setattr(blocked, "activity", lambda pid, _: {(pid, pid): tuple(self.activity[pid])})
        self.watch = HangWatch(tree)

    def write(self, pid: int, record: dict[str, Any]) -> None:
        with open(self.records[pid], "a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def batches(self, count: int) -> None:
        """Let the training process get batches, and the watch look at it, once a second."""
        row = bytes(8 * (1 + len(names.ROW_FIELDS[names.BATCH_ROW])))
        for _ in range(count):
            rows = base64.b64encode(row).decode()
            self.write(MAIN, {"type": "rows", "kind": names.BATCH_ROW, "rows": rows})
            self.seconds(1)

    def seconds(self, count: int) -> list[dict[str, Any]]:
        """Let time pass without a batch; what is told in it."""
        told = []
        for _ in range(count):
            self.now_s += 1
            record = self.watch.check(self.now_s * SECOND)
            told += [record] if record else []
        return told


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_hang_is_told_once_with_what_each_process_is_in(machine: Machine) -> None:
    machine.batches(40)
    assert machine.seconds(29) == []
    (told,) = machine.seconds(100)
    assert told["text"][1:] == [
        f"  training (pid {MAIN}) waits for a message",
        f"  worker 0 (pid {WORKER}) waits for a lock",
    ]
    machine.batches(1)
    assert machine.seconds(200) == []


def test_it_went_on(machine: Machine, tmp_path: Path) -> None:
    machine.batches(40)
    (told,) = machine.seconds(100)
    machine.write(MAIN, {"type": "rows", "kind": names.BATCH_ROW, "rows": "AAAA"})
    (resumed,) = machine.seconds(5)
    assert resumed["type"] == "resumed"
    sampler = tmp_path / names.TELEMETRY / "host-1"
    sampler.mkdir(parents=True)
    (sampler / names.HANGS).write_text(f"{json.dumps(told)}\n{{torn\n{json.dumps(resumed)}\n")
    (read,) = hangs_of(tmp_path)
    assert (read.resumed, read.processes[1].call) == (True, "futex")


@pytest.mark.parametrize("batches", [0, 4])
def test_a_loop_that_has_hardly_begun_is_not_judged(machine: Machine, batches: int) -> None:
    machine.batches(batches)
    assert machine.seconds(300) == []


def test_a_loop_of_long_steps_is_given_20_of_them(machine: Machine) -> None:
    for _ in range(6):
        machine.batches(1)
        assert machine.seconds(9) == []
    assert machine.seconds(190) == []
    assert machine.seconds(100)


@pytest.mark.parametrize(
    ("pid", "look"),
    [
        (WORKER, {"call": "clock_nanosleep"}),  # slow storage, simulated: it will go on by itself
        (MAIN, {"call": "fsync"}),  # a checkpoint
        (MAIN, {"call": "read", "file": "/dev/pts/1", "descriptor": 0}),  # a prompt
        (MAIN, {"state": "T"}),  # Ctrl-Z
        (WORKER, {"call": None, "wchan": None}),  # the kernel hides it
    ],
)
def test_what_may_go_on_by_itself_is_no_hang(machine: Machine, pid: int, look: dict[str, Any]) -> None:
    machine.looks[pid] |= look
    machine.batches(40)
    assert machine.seconds(300) == []


def test_under_a_debugger_and_after_the_last_batch_nothing_is_told(machine: Machine) -> None:
    machine.traced = True
    machine.batches(40)
    assert machine.seconds(300) == []
    machine.traced = False
    machine.write(MAIN, {"type": "iterator_end", "iterator": 0})
    assert machine.seconds(300) == []


@pytest.mark.parametrize(
    ("grows", "by"),
    [(0, 60_000_000), (1, 4096), (2, 6)],  # in 5 s: CPU ns, bytes, wakes (a socket's bytes are not counted)
)
def test_a_slow_but_living_job_is_not_called_hung(machine: Machine, grows: int, by: int) -> None:
    machine.batches(40)
    for _ in range(40):
        machine.activity[WORKER][grows] += by
        assert machine.seconds(5) == []


def test_a_stopped_worker_is_named_first(machine: Machine) -> None:
    machine.looks[WORKER] = {"state": "T", "wchan": "do_signal_stop", "call": None, "file": None}
    frames = ['File "x/torch/utils/data/dataloader.py", line 1 in _get_data']
    machine.looks[MAIN]["stack"] = frames
    assert blocked.waits_for_others(machine.looks[MAIN])
    stopped = blocked.sentence({**machine.looks[WORKER], "pid": WORKER, "role": "worker 0"})
    assert stopped == f"is stopped: kill -CONT {WORKER} lets it go on"
    machine.batches(40)
    (told,) = machine.seconds(100)
    assert len(told["processes"]) == 2


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    records = tmp_path / names.RECORDS
    records.write_text('{"type":"worker","wor')
    progress = Progress(str(tmp_path), 1)
    progress.look(SECOND)
    assert progress.worker is None
    records.write_text('{"type":"worker","worker":3}\n')
    progress.look(2 * SECOND)
    assert progress.worker == 3


def test_a_process_writes_its_stacks_only_through_the_file_that_was_opened_for_them(tmp_path: Path) -> None:
    (tmp_path / names.STACKS).touch()
    with open(tmp_path / "other", "w") as other:
        assert not blocked.ask_for_stacks(os.getpid(), str(tmp_path), (63, other.fileno()))
