"""Real searches: a loop at its ceiling, one that needs workers; Ctrl-C and resume; programs with a fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import environment
from tests.support.waiting import PATIENCE_S, eventually

# Prepares a batch in MAKE_S and computes for STEP_S, with a worker unless told otherwise.
LOOP = """
import argparse, time
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=1)
options = parser.parse_args()
MAKE_S, STEP_S = {make_s}, {step_s}
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(MAKE_S)
        {more}
        return torch.ones(4)

weight = torch.ones(4, requires_grad=True)
for batch in DataLoader(Slow(), num_workers=options.workers):
    (batch * weight).sum().backward()
    time.sleep(STEP_S)
"""
TUNE = [sys.executable, "-m", "iotrace", "tune"]


def write(directory: Path, make_s: float, step_s: float, more: str = "pass") -> None:
    (directory / "train.py").write_text(LOOP.format(make_s=make_s, step_s=step_s, more=more))


def tune(directory: Path, *words: str, program: str = "train.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TUNE, *words, "--", sys.executable, program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=900,
        env=environment(),
    )


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def runs_in(directory: Path) -> list[dict[str, Any]]:
    """The runs that a search has kept so far."""
    found: list[dict[str, Any]] = json.loads((directory / "sweep.json").read_text())["runs"]
    return found


def test_a_loop_at_its_ceiling_is_told_after_at_most_three_runs(tmp_path: Path) -> None:
    write(tmp_path, make_s=0.0, step_s=0.3)
    done = tune(tmp_path, "--steps", "5", "-o", "s", "--json")
    result = result_of(done)
    runs = runs_in(tmp_path / "s")
    if any(run["disturbed"] for run in runs):
        assert "IO901" in result["verdict"]["trust"]["codes"]  # other programs made it wait
        return
    assert done.returncode == 0
    assert (result["at_ceiling"], result["verdict"]["class"]) == (True, "at-ceiling")
    assert len(runs) <= 3
    assert result["best"]["apply"] == []


def test_where_workers_matter_they_are_found_and_a_stopped_search_is_resumed(tmp_path: Path) -> None:
    write(tmp_path, make_s=0.15, step_s=0.04)
    running = subprocess.Popen(
        [*TUNE, "--steps", "5", "-o", "s", "--csv", "t.csv", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    # The program as it is, with other workers, and then a further setting or a pair: that is stopped.
    runs = tmp_path / "s" / "runs"
    eventually(
        lambda: len([*runs.glob("point_*")]) > 2 or running.poll() is not None, within_s=2 * PATIENCE_S
    )
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "iotrace tune --resume -o s -- " in stdout
    headings = (tmp_path / "t.csv").read_text().splitlines()[0].split(",")
    assert {"workers", "per_second"} <= {*headings}  # others where other settings were tried
    found = json.loads((tmp_path / "s" / "tune-result.json").read_text())
    assert found["complete"] is False
    assert int(found["best"]["params"]["workers"]) > 1
    before = runs_in(tmp_path / "s")
    assert [run["kind"] for run in before[:2]] == ["point", "ceiling"]

    done = tune(tmp_path, "--resume", "-o", "s", "--json", "--budget", "1s")  # no room for a run
    result = result_of(done)
    assert runs_in(tmp_path / "s") == before
    assert result["runs"] == found["runs"]
    assert result["best"] == found["best"]
    assert result["complete"] is False
    assert any("no pair was run" in reason for reason in result["verdict"]["trust"]["reasons"])


@pytest.mark.slow
def test_the_whole_search_proves_the_winner(tmp_path: Path) -> None:
    write(tmp_path, make_s=0.2, step_s=0.05)
    done = tune(tmp_path, "--steps", "12", "-o", "s", "--json")
    result = result_of(done)
    assert result["complete"] is True
    assert int(result["best"]["params"]["workers"]) >= 3
    workers = result["best"]["params"]["workers"]
    call, option, *_ = result["best"]["apply"]
    assert call.startswith(f"DataLoader(num_workers={workers}")
    assert call.endswith(") at train.py:21")
    assert option == f"by --workers {workers} in the command"
    repeats = {json.dumps(run["params"]): run["repeats"] for run in result["runs"]}
    assert repeats[json.dumps({})] == repeats[json.dumps(result["best"]["params"])] == 3
    again = tune(tmp_path, "--resume", "-o", "s", "--json")
    assert result_of(again)["runs"] == result["runs"]
    assert "steps/s in" not in again.stderr  # nothing was run anew


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("print('no loader here')", 1, "no loader that iotrace knows"),
        ("raise SystemExit('where is the data?')", 1, "where is the data?"),
        (
            "import torch\nw = torch.ones(2, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
            "for _ in range(20):\n    w.sum().backward(); o.step()",
            1,
            "no DataLoader that could be tuned",
        ),
        (
            "import torch\nfrom torch.utils.data import DataLoader\nw = torch.ones(1, requires_grad=True)\n"
            "for b in DataLoader([1.0, 2.0]):\n    (b * w).sum().backward()",
            1,
            "too short",
        ),
    ],
)
def test_a_program_that_cannot_be_tuned_gets_a_sentence(
    tmp_path: Path, program: str, code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(program)
    done = tune(tmp_path, "-o", "s")
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_number_of_workers_that_the_program_cannot_have(tmp_path: Path) -> None:
    """It fails with three workers or more: two are found."""
    write(
        tmp_path,
        make_s=0.2,
        step_s=0.02,
        more="assert torch.utils.data.get_worker_info().num_workers < 3, 'too many readers'",
    )
    result = result_of(tune(tmp_path, "--steps", "8", "-o", "s", "--json"))
    assert result["best"]["params"]["workers"] == "2"
    assert any("exit code 1" in warning for warning in result["warnings"])


@pytest.mark.slow
def test_sigterm_ends_the_program_too(tmp_path: Path) -> None:
    write(tmp_path, make_s=0.2, step_s=0.02)
    running = subprocess.Popen(
        [*TUNE, "-o", "s", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    eventually((tmp_path / "s" / "runs" / "point__0" / "session" / "processes").exists)
    running.terminate()
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130, stderr
    assert "NO ADVICE" in stdout
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_search_from_python(tmp_path: Path) -> None:
    write(tmp_path, make_s=0.0, step_s=0.3)
    script = f"""
import iotrace
result = iotrace.tune([{sys.executable!r}, "train.py"], steps=5, output="s")
print(result.complete, result.path.endswith("/s"))
"""
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    assert (tmp_path / "s" / "tune-result.json").exists()
