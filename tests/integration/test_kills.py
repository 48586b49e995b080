"""SIGKILL: the session opens, a second at most is missing, and the loss is told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from iotrace.sources.processes import Process, read_processes
from iotrace.sources.records import BatchRecord, Produced, Worker
from tests.support.runs import Run, launcher

PROGRAM = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        with open(__file__, "rb") as file:
            os.pread(file.fileno(), 64, 0)
        time.sleep(0.01)
        return torch.ones(2)

weight = torch.ones(2, requires_grad=True)
for number, batch in enumerate(DataLoader(Slow(), batch_size=2, num_workers=2)):
    (batch * weight).sum().backward()
    if number == 0:
        print("pid", os.getpid(), flush=True)
"""


def _started(directory: Path) -> tuple[subprocess.Popen[str], Path, int]:
    """The program, training; its session and its own pid."""
    (directory / "program.py").write_text(PROGRAM)
    line, session = launcher(directory, [str(directory / "program.py")])
    process = subprocess.Popen(line, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = process.stdout.readline().split()
    assert told[:1] == ["pid"], process.communicate()
    time.sleep(2.5)
    return process, session, int(told[1])


def _workers(session: Path) -> list[Process]:
    return [process for process in read_processes(session)[0] if process.of_type(Worker)]


def _last_record_ns(process: Process) -> int:
    return max(process.clock.to_session_ns(record.prepared_ns) for record in process.of_type(Produced))


def _gone(pid: int) -> None:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)


def test_a_killed_worker(tmp_path: Path) -> None:
    launched, session, _ = _started(tmp_path)
    victim = _workers(session)[0].pid
    killed_ns = time.time_ns()
    os.kill(victim, signal.SIGKILL)
    output, errors = launched.communicate(timeout=60)
    assert launched.returncode == 1
    assert "killed by signal: Killed" in errors
    report = Run(launched.returncode, output, errors, session).report()
    assert report["session"]["complete"] is False
    assert any(f"(pid {victim})" in missing["what"] for missing in report["not_captured"])
    process = next(process for process in _workers(session) if process.pid == victim)
    assert not process.ended
    assert killed_ns - _last_record_ns(process) <= 1_000_000_000
    assert report["ranks"][0]["loaders"][0]["batches"] > 50
    assert report["ranks"][0]["loaders"][0]["failures"] == ["RuntimeError"]


def test_a_killed_program(tmp_path: Path) -> None:
    launched, session, pid = _started(tmp_path)
    workers = [process.pid for process in _workers(session)]
    killed_ns = time.time_ns()
    os.kill(pid, signal.SIGKILL)
    output, errors = launched.communicate(timeout=60)
    for worker in workers:
        _gone(worker)
    assert launched.returncode == 128 + signal.SIGKILL
    report = Run(launched.returncode, output, errors, session).report()
    assert report["session"]["exit_code"] == 137
    assert report["session"]["complete"] is False
    assert any(f"main (pid {pid})" in missing["what"] for missing in report["not_captured"])
    assert report["ranks"][0]["steps"]["count"] > 50
    main = next(process for process in read_processes(session)[0] if process.pid == pid)
    last_ns = max(main.clock.to_session_ns(batch.delivered_ns) for batch in main.of_type(BatchRecord))
    assert killed_ns - last_ns <= 1_000_000_000
    assert (session / "out" / "rank0.json.gz").exists()


def test_a_killed_launcher_leaves_a_session_that_opens(tmp_path: Path) -> None:
    launched, session, pid = _started(tmp_path)
    launched.kill()
    launched.wait()
    os.kill(pid, signal.SIGKILL)
    _gone(pid)
    report = Run(137, "", "", session).report()
    assert report["session"]["exit_code"] is None
    assert any(missing["what"] == "the exit code" for missing in report["not_captured"])
    assert report["ranks"][0]["steps"]["count"] > 50
    launched.communicate()
