"""SIGKILL in a training with a DataLoader."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from iotrace.agent.recording.recorder import FLUSH_SECONDS
from iotrace.session import names
from iotrace.sources.processes import Process, read_processes
from iotrace.sources.records import Worker
from tests.faults.rows import row
from tests.support.runs import Run, environment, launcher
from tests.support.waiting import PATIENCE_S, eventually, runs

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
    """The program when more than 60 of its batches are on the disk; its session and its own pid."""
    (directory / "program.py").write_text(PROGRAM)
    line, session = launcher(directory, [str(directory / "program.py")])
    process = subprocess.Popen(
        line, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    told = process.stdout.readline().split()
    assert told[:1] == ["pid"], process.communicate()
    pid = int(told[1])
    eventually(lambda: _count(session, pid, names.BATCH_ROW) > 60 and len(_workers(session)) == 2)
    return process, session, pid


def _count(session: Path, pid: int, kind: int) -> int:
    """How many of its records of a kind the process has on the disk."""
    return sum(len(process.rows(kind)) for process in read_processes(session)[0] if process.pid == pid)


def _workers(session: Path) -> list[Process]:
    return [process for process in read_processes(session)[0] if process.of_type(Worker)]


def test_the_writer_leaves_a_second_at_most_unwritten() -> None:
    assert FLUSH_SECONDS <= 1


@row(
    "SIGKILL of a DataLoader's worker (as the OOM killer does)",
    kept="torch's error, exit code 1; what the worker wrote, the batches delivered",
    lost="the worker's last second of records",
    limit_s=250,
    default=True,
)
def test_a_killed_worker(tmp_path: Path) -> None:
    launched, session, _ = _started(tmp_path)
    victim = _workers(session)[0].pid
    before = _count(session, victim, names.PRODUCED_ROW)
    os.kill(victim, signal.SIGKILL)
    output, errors = launched.communicate(timeout=PATIENCE_S)
    assert launched.returncode == 1
    # A process that ends closes its sockets before its parent is told: torch may meet the closed one first.
    closed = next((error for error in ("ConnectionResetError", "EOFError") if error in errors), "")
    signalled = "killed by signal: Killed" in errors
    # Once in some hundred runs, traced or not, no handler of SIGCHLD speaks up: torch finds the worker
    # gone 5 s later.
    gone = f"DataLoader worker (pid(s) {victim}) exited unexpectedly"
    unnoticed = gone in errors and not signalled and not closed
    named = signalled or unnoticed
    assert named or closed
    report = Run(launched.returncode, output, errors, session).report()
    process = next(process for process in _workers(session) if process.pid == victim)
    assert not process.ended
    # One that waited for work when it was killed had written all that it had.
    told = any(f"(pid {victim})" in missing["what"] for missing in report["not_captured"])
    assert told == (not process.idle)
    assert not (told and report["session"]["complete"])
    assert _count(session, victim, names.PRODUCED_ROW) >= before > 0  # what was written is kept
    assert report["ranks"][0]["loaders"][0]["batches"] > 50
    assert report["ranks"][0]["loaders"][0]["failures"] == ["RuntimeError" if named else closed]
    if not named:
        assert closed in report["verdict"]["text"]
        return
    verdict, steps = report["verdict"], report["session"]["failures"][0]["after_steps"]
    number = process.worker
    assert (
        verdict["text"]
        == f"FAILED exit code 1 after {steps} steps: RuntimeError in worker {number} (pid {victim})"
    )
    assert (
        gone if unnoticed else f"DataLoader worker (pid {victim}) is killed by signal: Killed"
    ) in verdict["why"]


@row(
    "SIGKILL of the training process (a rank)",
    kept="exit code 137; the workers end; steps and batches until a second before",
    lost="its last second of records",
    limit_s=250,
)
def test_a_killed_program(tmp_path: Path) -> None:
    launched, session, pid = _started(tmp_path)
    workers = [process.pid for process in _workers(session)]
    before = _count(session, pid, names.BATCH_ROW)
    os.kill(pid, signal.SIGKILL)
    output, errors = launched.communicate(timeout=PATIENCE_S)
    for worker in workers:
        eventually(lambda: not runs(worker))  # noqa: B023
    assert launched.returncode == 128 + signal.SIGKILL
    report = Run(launched.returncode, output, errors, session).report()
    assert report["session"]["exit_code"] == 137
    assert report["session"]["complete"] is False
    assert any(f"main (pid {pid})" in missing["what"] for missing in report["not_captured"])
    assert report["ranks"][0]["steps"]["count"] > 50
    (failure,) = report["session"]["failures"]
    assert (failure["type"], failure["process"]) == ("SIGKILL", pid)
    text = f"KILLED by SIGKILL (exit code 137) after {failure['after_steps']} steps"
    assert (report["verdict"]["class"], report["verdict"]["text"]) == ("failed", text)
    causes = report["ranks"][0]["data_wait"]["causes_ms"]
    costliest = max(causes, key=lambda cause: causes[cause])
    assert costliest in ("transform", "transport")  # workers sleep, or wait for a core
    assert report["verdict"]["until"].endswith(f"waited for data ({costliest})")
    assert _count(session, pid, names.BATCH_ROW) >= before
    assert (session / "out" / "timeline.pftrace").exists()


@row(
    "SIGKILL of the launcher, then of the training process",
    kept="the session opens; steps and batches until a second before",
    lost="the exit code; the last second of records",
    limit_s=250,
)
def test_a_killed_launcher_leaves_a_session_that_opens(tmp_path: Path) -> None:
    launched, session, pid = _started(tmp_path)
    launched.kill()
    launched.wait()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not runs(pid))
    report = Run(137, "", "", session).report()
    assert report["session"]["exit_code"] is None
    assert any(missing["what"] == "the exit code" for missing in report["not_captured"])
    assert report["ranks"][0]["steps"]["count"] > 50
    launched.communicate()
