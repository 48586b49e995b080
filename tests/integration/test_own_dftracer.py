"""Programs that use dftracer's Python module themselves: as without iotrace, and their events are seen."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from iotrace.session.names import DFTRACER, KIND_DFTRACER, RECORDER
from iotrace.sources.processes import read_processes
from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, run_traced

PROGRAM = """
import os, signal, sys, time
for _ in range(7):
    open("before.txt", "w").close()
sys.modules["torch"] = None  # where it is installed, dftracer imports it and its compiler, for seconds
from dftracer.python import dftracer, dft_fn
del sys.modules["torch"]
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
    os.kill(os.getpid(), signal.SIGTERM)  # has arrived when the call returns
sys.exit(3)
"""

MARKS = ["work"] * 10 + ["Model.__init__", "Model.forward", "Model.norm", "epoch"]


def settings(enabled: bool) -> dict[str, str]:
    return {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "FUNCTION"} if enabled else {"DFTRACER_ENABLE": "0"}


@dataclass(frozen=True)
class Pair:
    """The program under iotrace in `traced`, and by itself in `alone`."""

    enabled: bool
    by: str
    traced: Path
    alone: Path
    run: Run
    by_itself: subprocess.CompletedProcess[str]


def run_both(directory: Path, by: str, enabled: bool, *arguments: str) -> Pair:
    traced, alone = directory / "traced", directory / "alone"
    for place in (traced, alone):
        (place / "own").mkdir(parents=True)
        (place / "program.py").write_text(PROGRAM)
    by_itself = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=alone,
        capture_output=True,
        text=True,
        env={**os.environ, **settings(enabled)},
    )
    options = ["--quiet", "--torch-steps", "off", "--io-by", by]
    run = run_traced(traced, ["program.py", *arguments], options, **settings(enabled))
    return Pair(enabled, by, traced, alone, run, by_itself)


BOTH = [(RECORDER, True), (DFTRACER, False), (DFTRACER, True)]


@pytest.fixture(scope="module", params=BOTH, ids=["recorder-on", "dftracer-off", "dftracer-on"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """With dftracer switched off and on in the user's environment."""
    return run_both(tmp_path_factory.mktemp("dftracer"), *request.param)


def test_a_program_that_uses_dftracer_runs_as_without(pair: Pair) -> None:
    assert (pair.run.code, pair.run.stdout) == (pair.by_itself.returncode, pair.by_itself.stdout)
    assert pair.run.code == 3
    assert not list(pair.run.session.glob("processes/*/agent.log"))
    logs = list((pair.traced / "own").glob("trace-*"))
    assert bool(logs) == pair.enabled == bool(list((pair.alone / "own").glob("trace-*")))
    if pair.enabled:  # what it marked is in its own log
        data = logs[0].read_bytes()
        text = gzip.decompress(data) if logs[0].suffix == ".gz" else data
        assert text.count(b'"cat":"COMPUTE"') == 13


def test_what_it_marked_is_on_the_timeline_and_no_call(pair: Pair) -> None:
    (process,) = read_processes(pair.run.session)[0]
    marks = process.spans[process.spans["kind"] == KIND_DFTRACER]
    assert sorted(process.texts[name] for name in marks["name"].tolist()) == sorted(MARKS)
    assert set(marks["tid"].tolist()) == {process.pid}
    (slices, errors) = query(
        pair.run.timeline(),
        "select name, dur from slice where category = 'dftracer'",
        ERRORS,
    )
    assert sorted(name for name, _ in slices) == sorted(MARKS)
    assert next(dur for name, dur in slices if name == "epoch") > 0
    assert errors == []
    report = pair.run.report()
    files = {file["path"]: file for file in report["ranks"][0]["io"]["files"]}
    assert files["before.txt"]["opens"] == 7  # written although the program's own log took over
    assert files["during.txt"]["opens"] == 10
    assert not {"work", "epoch"} & set(files)
    told = [item["what"] for item in report["not_captured"]]
    ended = any("after it ended its own dftracer log" in what for what in told)
    assert ended == (pair.enabled and pair.by == DFTRACER)


def test_a_log_of_its_own_that_is_gone_is_told(pair: Pair) -> None:
    if not pair.enabled or pair.by == RECORDER:
        pytest.skip("no POSIX calls are in a log of the program's own")
    logs = pair.traced / "own"
    hidden = logs.rename(pair.traced / "hidden")
    try:
        report = pair.run.report()
    finally:
        hidden.rename(logs)
    assert report["session"]["complete"] is False
    missing = "the dftracer log that the program began, is missing"
    assert any(missing in item["why"] for item in report["not_captured"])


@pytest.mark.parametrize("by", [pytest.param(RECORDER, marks=pytest.mark.slow), DFTRACER])
@pytest.mark.parametrize("enabled", [pytest.param(False, marks=pytest.mark.slow), True], ids=["off", "on"])
def test_its_signals_end_it_as_without(tmp_path: Path, by: str, enabled: bool) -> None:
    pair = run_both(tmp_path, by, enabled, "term")
    alone = pair.by_itself.returncode
    assert pair.run.code == (alone if alone >= 0 else 128 - alone)
    assert pair.run.stdout == pair.by_itself.stdout
