"""``--log``: TensorBoard reads back what a run logged; a tracker that is away or slow costs a warning.

MLflow's server and W&B: tests/external (``tools/test --external``).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from iotrace import sinks
from iotrace.sinks import Sink, content, delivery
from tests.support.runs import SMALL_LOOP, Run, in_process, run_traced


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that logs to TensorBoard and prints nothing else."""
    return run_traced(tmp_path_factory.mktemp("log"), [SMALL_LOOP, "40"], ["-q", "--log", "tensorboard"])


@pytest.fixture
def session(run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.session, tmp_path / "session"))


def read_back(events: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(events), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def test_tensorboard_reads_back_what_the_report_says(run: Run) -> None:
    assert (run.code, run.stdout, run.stderr) == (0, "", "")
    logged = run.session / "out" / "log"
    assert all(path.stat().st_mode & 0o077 == 0 for path in logged.rglob("*"))
    report = json.loads((logged / "files" / "report.json").read_text())
    assert report["verdict"] == run.report()["verdict"]
    (rank,) = report["ranks"]
    found = read_back(logged / "tensorboard")
    (count,) = found.Scalars("iotrace/steps.count")
    assert count.value == rank["steps"]["count"]
    rates = found.Scalars("iotrace/over_time/steps_per_second")
    assert [(each.step, each.value) for each in rates] == [
        (each["first_step"], pytest.approx(each["steps_per_second"])) for each in rank["speed"]["evolution"]
    ]
    began_s = report["session"]["started_ns"] / 1e9
    assert rates[0].wall_time == pytest.approx(began_s + rank["speed"]["evolution"][0]["at_seconds"])
    (files,) = found.Tensors("iotrace/tables/files/text_summary")
    assert all(each["path"] in files.tensor_proto.string_val[0].decode() for each in rank["file_groups"])
    unknown = "iotrace/data_wait.exposed_ms" if rank["data_wait"]["exposed_ms"] is None else None
    assert unknown not in found.Tags()["scalars"]


STAND_IN = """
import os, subprocess, sys, time

def send(content, directory):
    print("a client prints much")
    how = os.environ["STAND_IN"]
    if how == "away":
        raise ConnectionError("connection refused\\nby the peer")
    if how == "dies":
        os.kill(os.getpid(), 9)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    (directory / "pid").write_text(str(child.pid))
    time.sleep(1000 if how == "hangs" else 0)
    return content.labels["verdict.class"]
"""


@pytest.mark.parametrize("how", ["takes it", "away", "dies", "hangs"])
def test_a_tracker_costs_no_exit_code_and_bounded_time(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "tracker.py").write_text(STAND_IN)
    monkeypatch.setenv("STAND_IN", how)
    monkeypatch.setitem(sinks.SINKS, "wandb", Sink("to_wandb", "json", "json"))
    monkeypatch.setattr(delivery, "_CODE", STANDS_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "stand_in"))
    monkeypatch.setattr(delivery, "LONGEST_SECONDS", 3.0 if how == "hangs" else 120.0)
    done = in_process("report", str(session), "--log", "wandb")
    assert done.returncode == 0
    assert done.stdout
    if how == "takes it":
        kind = json.loads((session / "out" / "log" / "files" / "report.json").read_text())["verdict"]["class"]
        assert done.stderr.endswith(f"iotrace: logged to wandb: {kind}\n")
        return
    why = {
        "away": "connection refused",
        "dies": "its client ended without an answer",
        "hangs": "no answer within 3 s",
    }[how]
    assert f"iotrace: warning: wandb did not take the result: {why}" in done.stderr
    assert f"to try again: iotrace report {session} --log wandb" in done.stderr
    if how != "hangs":  # it may not have got so far
        assert "a client prints much" in (session / "out" / "log" / "wandb.log").read_text()
    assert content.read(session / "out" / "log").name == "session"


STANDS_IN = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
import tracker
sys.modules["iotrace.sinks.to_wandb"] = tracker
from iotrace.sinks.send import main
main()
"""


def test_a_missing_client_is_said_before_anything_runs(
    session: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    for words, code in (
        (["report", str(session), "--log", "mlflow"], 2),
        (["run", "--log", "mlflow", "--", sys.executable, "-c", "open('ran', 'w')"], 125),
        (["sweep", "--workers", "1,2", "--log", "mlflow", "--", "false"], 2),
    ):
        done = in_process(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert "--log mlflow needs the package mlflow-skinny" in done.stderr
        assert "pip install mlflow-skinny" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["session"]
    done = in_process("report", str(session), "--log", "mlfow")
    assert (done.returncode, "--log knows mlflow, wandb, tensorboard; not 'mlfow'" in done.stderr) == (
        2,
        True,
    )


def test_a_directory_that_cannot_be_written_is_replaced(session: Path, tmp_path: Path) -> None:
    shutil.rmtree(session / "out" / "log")
    (session / "out" / "log").symlink_to(tmp_path)  # a stranger's session
    done = in_process("report", str(session), "--log", "tensorboard", cwd=tmp_path)
    assert done.returncode == 0
    (made,) = tmp_path.glob("iotrace-log-*")
    assert f"tensorboard --logdir {made}/tensorboard" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.name, "session"]
