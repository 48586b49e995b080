"""Each program is recorded, its first fix tried and applied; run with --try, alone on the machine."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import iotrace_command
from iotrace.analysis.results import Report
from iotrace.trying.results import PROVEN, RESULT, Trial
from tests.support.runs import PROJECT
from tests.trials.rows import NONE, ROWS, Row

pytestmark = pytest.mark.trials

_PROGRAMS = Path(__file__).parent
_GIT = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]


def _iotrace(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, iotrace_command.__file__, *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=900, check=False)


def _copied(row: Row, folder: Path) -> Path:
    """Copy the program of a row into a git tree of its own, as its source is going to change."""
    place = PROJECT if row.program.startswith("workloads/") else _PROGRAMS
    program = folder / "train.py"
    shutil.copy(place / row.program, program)
    shutil.copy(_PROGRAMS / "programs" / "loop.py", folder)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "as it is"]):
        subprocess.run([*_GIT, *words], cwd=folder, check=True)
    return program


def try_row(row: Row, folder: Path) -> tuple[subprocess.CompletedProcess[str], Trial | None]:
    """Record the program of a row in a folder, twice (the first run makes its data), and try its fix."""
    command = ["--", sys.executable, str(_copied(row, folder)), *row.arguments]
    for session in ("first", "session"):
        done = _iotrace("run", "-q", "-o", session, *command, folder=folder)
        assert done.returncode == 0, done.stderr
    asked = [*(["--fix", row.fix] if row.fix else []), *(["--patch", "fix.diff"] if row.applied else [])]
    done = _iotrace("try", "session", "--yes", "--apply", "-o", "trial", *asked, folder=folder)
    kept = folder / "trial" / RESULT
    return done, msgspec.json.decode(kept.read_bytes(), type=Trial) if kept.exists() else None


def _check_applied(row: Row, trial: Trial, folder: Path, said: str) -> None:
    """What was proven is in the source, or in the place of the data, and a further run names it no more."""
    diff = subprocess.run([*_GIT, "diff"], cwd=folder, capture_output=True, text=True, check=True).stdout
    added = [line for line in diff.splitlines() if line.startswith("+")]
    assert any(row.applied in line for line in added) == bool(row.applied), f"{diff}\n{said}"
    assert not row.edit or any(row.edit in text and "train.py:" in text for text in trial.apply), said
    if not row.applied and (row.edit or not trial.data):
        return  # an edit is left to the user
    assert row.applied or all(Path(each.original or "").exists() for each in trial.data), said
    command = ["--", sys.executable, str(folder / "train.py"), *row.arguments]
    done = _iotrace("run", "-q", "-o", "after", *command, folder=folder)
    assert done.returncode == 0, done.stderr
    done = _iotrace("report", "after", "--json", folder=folder)
    fixes = msgspec.json.decode(done.stdout, type=Report).verdict.fixes
    assert trial.fix_text not in [fix.text for fix in fixes]


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
    if trial.kind != PROVEN:
        return
    if trial.told is not None and trial.gain is not None:
        # What was told holds for the recorded run; the trial's runs have intervals of their own.
        assert trial.told.high is None or trial.gain.low <= trial.told.high, said
        assert trial.told.about or trial.told.low is None or trial.gain.high >= trial.told.low, said
    _check_applied(row, trial, tmp_path, said)


def test_fixes_that_exclude_each_other_are_refused_before_a_run(tmp_path: Path) -> None:
    """Workers that are kept, or none: the report of this program names both, where a CPU is free."""
    row = Row("excluding", "programs/restarted_tiny.py", (PROVEN,))
    command = ["--", sys.executable, str(_copied(row, tmp_path))]
    assert _iotrace("run", "-q", "-o", "session", *command, folder=tmp_path).returncode == 0
    done = _iotrace("report", "session", "--json", folder=tmp_path)
    codes = {fix.code for fix in msgspec.json.decode(done.stdout, type=Report).verdict.fixes}
    if not codes >= {"IO201", "IO203"}:
        pytest.skip(f"other programs ran beside: the report names {codes}")
    done = _iotrace("try", "session", "--yes", "--fix", "IO203", "--fix", "IO201", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "two fixes exclude each other" in done.stderr
    assert "leaves no workers for" in done.stderr
    assert not list(tmp_path.glob("iotrace-try-*"))
