"""iotrace's own commands, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import iotrace_command
from tests.faults.harness import Trial
from tests.faults.programs import DATA, READING
from tests.faults.rows import row
from tests.support.runs import PROJECT
from tests.support.waiting import PATIENCE_S, eventually

IOTRACE = [sys.executable, iotrace_command.__file__]
# At which part of its time a command is interrupted.
STAGES = (0.15, 0.4, 0.6, 0.8, 0.95)


def ended(line: Sequence[str], directory: Path, after_s: float, number: signal.Signals) -> int:
    """Start a command, send its group a signal, return its exit code; no output may hold a traceback.

    But Python's own: on a busy machine the signal may come before a line of ours has run.
    """
    running = subprocess.Popen(
        line,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after_s)
    try:
        os.killpg(running.pid, number)
    except ProcessLookupError:  # it has ended already
        pass
    _, stderr = running.communicate(timeout=PATIENCE_S)
    if stderr.startswith("Fatal Python error: init"):
        return 130
    assert "Traceback" not in stderr
    return running.returncode


@row(
    "SIGINT, SIGTERM or SIGKILL of `iotrace merge` at five stages",
    kept="the inputs; the output is whole or absent; the next merge writes the same bytes",
    lost="the output; SIGKILL leaves a directory .OUT*.partial, which no command reads",
    limit_s=250,
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_merge_that_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    inputs = [f"{rank}.json" for rank in range(2)]
    for rank, name in enumerate(inputs):
        make = [sys.executable, str(PROJECT / "tools" / "make_trace.py"), name, "12", "--rank", str(rank)]
        subprocess.run(make, cwd=tmp_path, check=True, capture_output=True)
    before = {name: (tmp_path / name).read_bytes() for name in inputs}
    line = [*IOTRACE, "merge", *inputs, "-o", "out.json"]
    begun = time.monotonic()
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    whole_s = time.monotonic() - begun
    whole = (tmp_path / "out.json").read_bytes()
    (tmp_path / "out.json").unlink()
    for stage in STAGES:
        code = ended(line, tmp_path, stage * whole_s, number)
        assert code in (0, 130, -number), code
        written = tmp_path / "out.json"
        assert written.exists() or code != 0
        if written.exists():  # it was done before the signal came, but for its end
            assert written.read_bytes() == whole
            written.unlink()
        left = {path.name for path in tmp_path.iterdir()} - set(inputs)
        assert number == signal.SIGKILL or not left, left
        assert all(name.startswith(".out") and name.endswith(".partial") for name in left), left
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "out.json").read_bytes() == whole
    assert {name: (tmp_path / name).read_bytes() for name in inputs} == before


@row(
    "SIGINT, SIGTERM or SIGKILL of `iotrace report` at five stages",
    kept="the session, byte for byte; the next report says the same",
    lost="that report",
    limit_s=250,
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_report_that_is_interrupted(trial: Trial, number: signal.Signals) -> None:
    trial.files = DATA
    pair = trial.both(READING)
    line = [*IOTRACE, "report", str(pair.session), "--json"]
    begun = time.monotonic()
    whole = subprocess.run(line, check=True, capture_output=True).stdout
    whole_s = time.monotonic() - begun
    before = _files(pair.session)
    for stage in STAGES:
        assert ended(line, trial.directory, stage * whole_s, number) in (0, 130, -number)
    assert _files(pair.session) == before
    assert subprocess.run(line, check=True, capture_output=True).stdout == whole


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


LOOP = """
import sys, time
import iotrace
for batch in iotrace.batches(range(20)):
    time.sleep(0.002)
"""


@row(
    "SIGINT of `iotrace sweep`'s group, SIGTERM, SIGKILL, in its first and in its second run",
    kept="runs that had ended; --resume runs the others",
    lost="the run that was interrupted: it is run again",
    limit_s=250,
)
@pytest.mark.parametrize(
    ("number", "stage"),
    [(signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGKILL, 1), (signal.SIGKILL, 2)],
)
def test_a_sweep_that_is_interrupted(tmp_path: Path, number: signal.Signals, stage: int) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    sweep = [*IOTRACE, "sweep", "--workers", "1,2", "--no-ceiling", "-o", "s"]
    command = ["--", sys.executable, "train.py", "{workers}"]
    running = subprocess.Popen(
        [*sweep, *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    reached = tmp_path / "s" / "runs" / f"point_workers={stage}_0" / "session" / "processes"
    eventually(lambda: reached.exists() or running.poll() is not None)
    os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in stderr
    assert running.returncode in (130, 143, -number)
    resumed = subprocess.run(
        [*sweep, "--resume", "--json", *command], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert "Traceback" not in resumed.stderr
    result = json.loads(resumed.stdout)
    assert result["complete"] is True
    assert [(point["workers"], point["status"]) for point in result["points"]] == [(1, "ok"), (2, "ok")]
    assert ("run 1 of 2" in resumed.stderr) == (stage == 1)
