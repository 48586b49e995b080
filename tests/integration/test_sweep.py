"""Real sweeps: a loop of known compute and production, found again; bad commands; Ctrl-C and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iotrace.session import names
from iotrace.sources.processes import read_processes
from iotrace.sources.records import Replayed
from tests.support.runs import environment, report_of, run_script
from tests.support.waiting import PATIENCE_S, eventually

# Prepares a batch in PREP_S and computes for COMPUTE_S: the knee is at PREP_S / COMPUTE_S workers.
LOOP = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

PREP_S, COMPUTE_S = 0.12, 0.04
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(PREP_S)
        return torch.ones(4)

weight = torch.ones(4, requires_grad=True)
workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
for epoch in range(100):
    for batch in DataLoader(Slow(), num_workers=workers):
        (batch * weight).sum().backward()
        time.sleep(COMPUTE_S)
    with torch.no_grad():
        for batch in DataLoader(Slow(), num_workers=0, sampler=range(2)):
            pass
"""
# A loop without a DataLoader, which starts at once. Asked for two workers, it waits until it may run.
SOURCE = """
import os, sys, time
import iotrace

while sys.argv[1:] == ["2"] and os.path.exists("wait"):
    time.sleep(0.05)
for batch in iotrace.batches(number for number in range(30)):
    time.sleep(0.002)
    iotrace.step()
"""
SWEEP = [sys.executable, "-m", "iotrace", "sweep"]


def sweep(directory: Path, *words: str, program: str = LOOP) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(program)
    return subprocess.run(
        [*SWEEP, *words], cwd=directory, capture_output=True, text=True, timeout=280, env=environment()
    )


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_points_and_ceiling_are_what_their_sessions_hold(tmp_path: Path) -> None:
    """Where the knee lies, and what the model says, is computed in tests/unit/test_sweep.py."""
    words = ["--workers", "1,4", "--steps", "16", "-o", "s", "--json", "--csv", "table.csv"]
    done = sweep(tmp_path, *words, "--", sys.executable, "train.py")
    result = result_of(done)
    rows = {row["workers"]: row for row in result["points"]}
    assert sorted(rows) == [1, 4]
    # On a busy machine there may be no advice, and no other result.
    assert (done.returncode, result["advice"] is None) in [(0, False), (1, True)], done.stderr
    assert result["verdict"]["class"] == ("best" if result["advice"] else "no-advice")
    assert [row["yours"] for row in result["points"]] == [False, False]
    assert result["ceiling"]["per_second"] > 0
    for row in rows.values():
        (session,) = row["sessions"]
        (rank,) = report_of(tmp_path / session)["ranks"]
        assert row["per_second"] == pytest.approx(rank["steps"]["per_second"])
        of_steps = [1e3 / end for end in reversed(rank["steps"]["mean_ci95_ms"])]
        if row["disturbed"]:  # another run beside other programs may differ by more than steps do
            assert row["ci95"][0] < of_steps[0] < of_steps[1] < row["ci95"][1]
        else:
            assert row["ci95"] == pytest.approx(of_steps)
        assert row["others_cpu_fraction"] == rank["system"]["host"]["others_cpu_fraction"]
        assert row["raw_wait_fraction"] == pytest.approx(rank["data_wait"]["raw_wait_fraction"])
        assert sum(row["causes_ms"].values()) == pytest.approx(rank["data_wait"]["raw_ms"])
        # The evaluation's loader kept its own workers, the training's did not.
        assert row["ended"] is True
    assert rows[1]["predicted_per_second"] is None
    assert rows[4]["predicted_per_second"] > 0
    assert max(rows[1]["causes_ms"], key=rows[1]["causes_ms"].get) == "transform"
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["workers", "1", "4"]
    output = (tmp_path / "s" / "runs" / "point_workers=4_0" / "output.log").read_text()
    assert "loader of Slow: 0, None → 4, 2" in output
    assert output.count("→") == 1 or "ended here" in output


def test_a_placeholder_is_filled_and_the_agent_sets_nothing(tmp_path: Path) -> None:
    words = ["--workers", "2", "--steps", "6", "--no-ceiling", "-o", "s", "--json"]
    done = sweep(tmp_path, *words, "--", sys.executable, "train.py", "{workers}")
    assert done.returncode == 1, done.stderr  # one point is compared with nothing
    result = result_of(done)
    assert [row["workers"] for row in result["points"]] == [2]
    assert result["points"][0]["yours"] is False  # what the program would do by itself is not known
    assert result["ceiling"] is None
    output = (tmp_path / "s" / "runs" / "point_workers=2_0" / "output.log").read_text()
    assert "→" not in output


def test_ctrl_c_keeps_what_there_is_and_resume_runs_the_rest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "wait").touch()
    words = [*SWEEP, "--workers", "1,2", "--steps", "5", "--no-ceiling", "-o", "s"]
    command = ["--", sys.executable, "train.py", "{workers}"]
    running = subprocess.Popen(
        [*words, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    second = tmp_path / "s" / "runs" / "point_workers=2_0" / "session" / "processes"
    eventually(second.exists)
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130, stderr
    assert "--resume" in stderr
    assert "not run" in stdout
    (tmp_path / "wait").unlink()
    done = sweep(tmp_path, *words[4:], "--resume", "--json", *command, program=SOURCE)
    result = result_of(done)
    assert done.returncode == (0 if result["advice"] else 1), done.stderr
    assert result["complete"] is True
    assert "run 2 of 2" in done.stderr
    assert "run 1 of 2" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--workers", "1"], 2, "no command was given"),
        (["--workers", "1,x", "--", "python"], 2, "which is no whole number"),
        (["--", "python", "train.py"], 2, "nothing to compare"),
        (["--set", "lr=1,2", "--", "python", "train.py"], 2, "does not hold {lr}"),
        (["--workers", "1", "--resume", "--", "python", "train.py"], 2, "--resume needs"),
    ],
)
def test_bad_usage_gets_a_sentence(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = sweep(tmp_path, *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_without_a_loader_is_told_after_its_first_run(tmp_path: Path) -> None:
    words = ["--workers", "1,2", "-o", "s", "--", sys.executable, "train.py"]
    done = sweep(tmp_path, *words, program="print('no loader here')")
    assert done.returncode == 1
    assert "no measured steps" in done.stderr
    assert "no loader here" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 1


def test_a_sweep_from_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    script = f"""
import iotrace
command = [{sys.executable!r}, "train.py", "{{workers}}"]
result = iotrace.sweep(command, workers=[2], steps=5, ceiling=False, output="s")
print([row.workers for row in result.points], result.complete, result.verdict.kind)
"""
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (0, "[2] True no-advice\n"), done.stderr


INFERENCE = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.ones(4)

with torch.no_grad():
    for batch in DataLoader(Slow(), num_workers=0):
        time.sleep(0.01)
"""


def test_a_loop_without_backward_is_swept(tmp_path: Path) -> None:
    words = ["--workers", "1,3", "--steps", "12", "-o", "s", "--json"]
    done = sweep(tmp_path, *words, "--", sys.executable, "train.py", program=INFERENCE)
    result = result_of(done)
    assert done.returncode == (0 if result["advice"] else 1), done.stderr
    assert [row["workers"] for row in result["points"]] == [1, 3]
    assert all(row["status"] == "ok" for row in result["points"])
    processes, _ = read_processes(tmp_path / result["ceiling"]["session"])
    assert any(process.of_type(Replayed) for process in processes)
    assert done.stderr.count("not applied") == 1  # the first run showed that nothing trains
    for row in result["points"]:
        (rank,) = report_of(tmp_path / row["sessions"][0])["ranks"]
        assert rank["loaders"][0]["batches"] < 60


EPOCHS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.ones(4)

weight = torch.ones(4, requires_grad=True)
for epoch in range(2):
    count = 0
    for batch in DataLoader(Numbers(), batch_size=2):
        (batch * weight).sum().backward()
        count += 1
    print(count)
"""


def test_epochs_of_batches_from_memory_are_as_long_as_the_loaders(tmp_path: Path) -> None:
    asked = names.encode_settings({"workers": "0", "replay": "4"})  # a ceiling, without --steps
    run = run_script(tmp_path, EPOCHS, **{names.OVERRIDE_VARIABLE: asked})
    assert run.stdout == "12\n12\n"
    processes, _ = read_processes(run.session)
    assert any(process.of_type(Replayed) for process in processes)


def test_a_loop_without_a_dataloader_is_swept_by_its_own_words(tmp_path: Path) -> None:
    words = ["--workers", "1,2", "-o", "s", "--json", "--"]
    done = sweep(tmp_path, *words, sys.executable, "train.py", "{workers}", program=SOURCE)
    result = result_of(done)
    assert done.returncode == (0 if result["advice"] else 1), done.stderr
    assert [(row["workers"], row["status"]) for row in result["points"]] == [(1, "ok"), (2, "ok")]
    assert all(row["per_second"] > 0 for row in result["points"])
    assert result["ceiling"] is None
    assert "no ceiling: not applied: the loop's batches did not come from memory" in result["warnings"]


TRAINED_SOURCE = """
import time
import iotrace, torch

weight = torch.ones(4, requires_grad=True)
for batch in iotrace.batches(torch.ones(4) for _ in range(30)):
    time.sleep(0.002)
    (batch * weight).sum().backward()
"""


def test_workers_that_nobody_can_set_are_told_with_what_was_measured(tmp_path: Path) -> None:
    words = ["--workers", "1,2", "-o", "s", "--no-ceiling", "--", sys.executable, "train.py"]
    done = sweep(tmp_path, *words, program=TRAINED_SOURCE)
    assert done.returncode == 2
    assert "from no DataLoader whose workers could be set, as measured" in done.stderr
    assert "steps/s" in done.stderr
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 1
