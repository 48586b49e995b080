"""Launchers that come from elsewhere: one timeline and one report, whatever starts the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.runs import SMALL_LOOP, report_of

APP = """
import hydra, numpy as np, iotrace

@hydra.main(version_base="1.1", config_path=None)
def main(config):
    np.save("volume.npy", np.arange(50_000))  # in a directory of the job's own
    for _ in iotrace.batches(np.load("volume.npy").sum() for _ in range(config.steps)):
        np.sort(np.arange(100_000)[::-1])

main()
"""


def traced(directory: Path, *words: str) -> str:
    """Standard error of `words`, traced into ``session``."""
    line = [sys.executable, "-m", "iotrace", "run", "-o", "session", "--torch-steps", "off", "--", *words]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\nNext ") == 1
    assert len(list(directory.rglob("timeline.pftrace"))) == 1
    return done.stderr


def test_the_jobs_of_a_hydra_multirun_are_one_report(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    traced(tmp_path, sys.executable, "app.py", "-m", "+steps=20,30")
    (rank,) = report_of(tmp_path / "session")["ranks"]
    assert rank["steps"]["begun"] == 50


def test_uv_run_is_no_rank(tmp_path: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    traced(tmp_path, uv, "run", "--offline", "--no-project", "--python", sys.executable, SMALL_LOOP, "20")
    (rank,) = report_of(tmp_path / "session")["ranks"]
    assert (rank["rank"], rank["world_size"], rank["steps"]["begun"]) == (0, None, 20)
