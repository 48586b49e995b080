"""The start-up of a real program: its parts, its imports, what it pickled; on the timeline, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.startup.imports import STANDARD
from iotrace.analysis.startup.waterfall import NOT_NAMED
from tests.support.perfetto import query
from tests.support.runs import in_process, run_script, run_traced

PROGRAM_WITH_STEPS = """
import iotrace, email.mime.audio, multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print, args=("a" * 5000,))
    process.start()
    process.join()
    for _ in range(3):
        iotrace.step()
"""


def test_a_run_says_what_its_start_was_made_of(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_WITH_STEPS)
    run = run_traced(tmp_path, [str(program)], ["--quiet", "--no-telemetry"])
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    startup = rank["startup"]
    names = [part["name"] for part in startup["parts"]]
    assert names[:2] == ["interpreter", "imports"]
    assert names[-1] == NOT_NAMED  # the program's own lines
    assert {"tracing", "pickling", "first step"} <= set(names)
    assert sum(part["seconds"] for part in startup["parts"]) == pytest.approx(startup["first_step_seconds"])
    assert startup["parts"][-1]["seconds"] == pytest.approx(
        startup["first_step_seconds"] * (1 - startup["named_fraction"])
    )
    imports = {row["package"]: row for row in startup["imports"]}
    assert imports[STANDARD]["modules"] > 5
    assert sum(row["seconds"] for row in imports.values()) == pytest.approx(
        sum(part["seconds"] for part in startup["parts"] if part["name"] in ("imports", "tracing"))
    )
    assert startup["pickled_bytes"] > 5000
    assert startup["imports_waiting_seconds"] is None  # nothing sampled how long it waited for a CPU
    shown = in_process("report", str(run.session), "--view", "startup").stdout
    assert "not named" in shown
    assert "pickled for spawned processes: " in shown
    assert "import email.mime.audio" in str(query_names(run.timeline()))


TWO_TRAININGS = """
import subprocess, sys
if len(sys.argv) == 1:
    for what in ("first", "second"):
        subprocess.run([sys.executable, __file__, what], check=True)
    sys.exit()
import iotrace
for _ in range(3):
    iotrace.step()
"""


def test_a_start_counts_from_its_own_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWO_TRAININGS)
    run = run_traced(tmp_path, [str(program)], ["--quiet", "--no-telemetry"])
    assert run.code == 0, run.stderr
    by_command = {rank["argv"][-1]: rank["startup"] for rank in run.report()["ranks"]}
    first, second = by_command["first"], by_command["second"]
    assert first["launched_seconds"] > 0
    # The second one starts behind the first: that is none of its own start.
    assert second["launched_seconds"] >= first["launched_seconds"] + first["seconds"]
    shown = in_process("report", str(run.session)).stdout
    assert "program.py first" in shown
    assert "program.py second" in shown


PROGRAM_WITH_MODEL = """
import time, torch
from torch.utils.data import DataLoader, Dataset
def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
class Volumes(Dataset):
    def __init__(self):
        compute(0.5)
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.zeros(4)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        compute(0.5)
        self.out = torch.nn.Linear(4, 1)
    def forward(self, batch):
        return self.out(batch)
compute(0.5)
dataset, net = Volumes(), Net()
for batch in DataLoader(dataset, batch_size=2):
    net(batch).sum().backward()
"""


@pytest.mark.slow
def test_what_computes_before_the_loop_has_a_name(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM_WITH_MODEL)
    (rank,) = run.report()["ranks"]
    sampled = {part["name"]: part["seconds"] for part in rank["startup"]["parts"] if part["sampled"]}
    (own,) = [name for name in sampled if name.startswith("compute (program")]
    # The clock of the sampler beside that of the program: of 0.5 s a sample at each end may be missed.
    assert all(sampled[name] > 0.3 for name in ("model", "dataset Volumes", own))
    assert rank["startup"]["named_fraction"] > 0.95


def query_names(trace: Path) -> list[Any]:
    """The names of the slices of the start, as Perfetto's importer has them."""
    (rows,) = query(trace, "select name from slice where category = 'start-up'")
    return [name for (name,) in rows]
