"""Each program is recorded, and its first fix tried; run with --try, alone on the machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import iotrace_command
from iotrace.trying.results import PROVEN, RESULT, Trial
from tests.support.runs import PROJECT
from tests.trials.rows import NONE, ROWS, Row

pytestmark = pytest.mark.trials

_PROGRAMS = Path(__file__).parent


def _iotrace(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, iotrace_command.__file__, *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=900, check=False)


def try_row(row: Row, folder: Path) -> tuple[subprocess.CompletedProcess[str], Trial | None]:
    """Record the program of a row in a folder, twice (the first run makes its data), and try its fix."""
    place = PROJECT if row.program.startswith("workloads/") else _PROGRAMS
    command = ["--", sys.executable, str(place / row.program), *row.arguments]
    for session in ("first", "session"):
        done = _iotrace("run", "-q", "-o", session, *command, folder=folder)
        assert done.returncode == 0, done.stderr
    fix = ["--fix", row.fix] if row.fix else []
    done = _iotrace("try", "session", "--yes", "-o", "trial", *fix, folder=folder)
    kept = folder / "trial" / RESULT
    return done, msgspec.json.decode(kept.read_bytes(), type=Trial) if kept.exists() else None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_trial_says_what_the_fix_gains(row: Row, tmp_path: Path) -> None:
    if row.needs and importlib.util.find_spec(row.needs) is None:
        pytest.skip(f"needs {row.needs}")
    done, trial = try_row(row, tmp_path)
    said = f"{done.stdout}\n{done.stderr}"
    if NONE in row.kinds:
        assert trial is None, said
        assert done.returncode == 1, said
        assert "the program has to be edited" in done.stderr
        return
    assert trial is not None, said
    assert trial.kind in row.kinds, said
    assert trial.fix in row.codes, said
    assert not row.data or {each.how for each in trial.data} == {row.data}, said
    if trial.kind == PROVEN and trial.told is not None and trial.gain is not None:
        # What was told holds for the recorded run; the trial's runs have intervals of their own.
        assert trial.gain.low <= trial.told.high, said
        assert trial.told.about or trial.told.low is None or trial.gain.high >= trial.told.low, said
