"""Programs that use dftracer's Python module themselves: as without iotrace, and their events are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iotrace.session.names import KIND_DFTRACER
from iotrace.sources.records import read_processes
from tests.support.perfetto import query
from tests.support.runs import Run, run_script

PROGRAM = """
import os, signal, sys, time
for _ in range(7):
    open("before.txt", "w").close()
from dftracer.python import dftracer, dft_fn
print("signals", signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
log = dftracer.initialize_log(logfile="own/trace", data_dir=os.getcwd(), process_id=-1)
dft = dft_fn("COMPUTE")

@dft.log
def work(step, data=None):
    "a docstring"
    with open("during.txt", "w") as file:
        file.write("x" * step)
    return step

class Model:
    @dft.log_init
    def __init__(self):
        self.epoch = 3
    @dft.log
    def forward(self, x):
        return x + 1
    @dft.log_static
    @staticmethod
    def norm(x):
        return x

print(work.__name__, work.__doc__, sum(work(n) for n in range(10)), Model().forward(1), Model.norm(2))
with dft_fn(cat="block", name="epoch"):
    time.sleep(0.002)
log.finalize()
print("end")
if "term" in sys.argv:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
sys.exit(3)
"""

MARKS = ["work"] * 10 + ["Model.__init__", "Model.forward", "Model.norm", "epoch"]


def settings(enabled: bool) -> dict[str, str]:
    return {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "FUNCTION"} if enabled else {"DFTRACER_ENABLE": "0"}


def traced_and_not(directory: Path, enabled: bool, *arguments: str) -> tuple[Run, Any]:
    for name in ("own", "alone"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "alone" / "own").mkdir()
    (directory / "program.py").write_text(PROGRAM)
    alone = subprocess.run(
        [sys.executable, str(directory / "program.py"), *arguments],
        cwd=directory / "alone",
        capture_output=True,
        text=True,
        env={**os.environ, **settings(enabled)},
    )
    return run_script(directory, PROGRAM, *arguments, **settings(enabled)), alone


@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
def test_a_program_that_uses_dftracer_runs_as_without(tmp_path: Path, enabled: bool) -> None:
    run, alone = traced_and_not(tmp_path, enabled)
    assert (run.code, run.stdout) == (alone.returncode, alone.stdout)
    assert alone.returncode == 3
    assert not list(run.session.glob("processes/*/agent.log"))
    logs = list((tmp_path / "own").glob("trace-*"))
    assert bool(logs) == enabled == bool(list((tmp_path / "alone" / "own").glob("trace-*")))
    if enabled:  # what it marked is in its own log
        assert logs[0].read_text().count('"cat":"COMPUTE"') == 13


@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
def test_what_it_marked_is_on_the_timeline_and_no_call(tmp_path: Path, enabled: bool) -> None:
    run, _ = traced_and_not(tmp_path, enabled)
    (process,) = read_processes(run.session)
    marks = process.spans[process.spans["kind"] == KIND_DFTRACER]
    assert sorted(process.texts[name] for name in marks["name"].tolist()) == sorted(MARKS)
    assert set(marks["tid"].tolist()) == {process.pid}
    (slices, errors) = query(
        run.session / "out" / "rank0.json.gz",
        "select name, dur from slice where category = 'dftracer'",
        "select name from stats where severity = 'error' and value > 0",
    )
    assert sorted(name for name, _ in slices) == sorted(MARKS)
    assert next(dur for name, dur in slices if name == "epoch") >= 2_000_000
    assert errors == []
    report = run.report()
    files = {file["path"]: file for file in report["ranks"][0]["io"]["files"]}
    assert files["before.txt"]["opens"] == 7  # written although the program's own log took over
    assert files["during.txt"]["opens"] == 10
    assert not {"work", "epoch"} & set(files)
    told = [item["what"] for item in report["not_captured"]]
    assert any("after it ended its own dftracer log" in what for what in told) == enabled


@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
def test_its_signals_end_it_as_without(tmp_path: Path, enabled: bool) -> None:
    run, alone = traced_and_not(tmp_path, enabled, "term")
    code = alone.returncode if alone.returncode >= 0 else 128 - alone.returncode
    assert (run.code, run.stdout) == (code, alone.stdout)


def test_a_log_of_its_own_that_is_gone_is_told(tmp_path: Path) -> None:
    run, _ = traced_and_not(tmp_path, True)
    for log in (tmp_path / "own").glob("trace-*"):
        log.unlink()
    report = run.report()
    assert report["session"]["complete"] is False
    assert any("the log of its own" in item["why"] for item in report["not_captured"])
