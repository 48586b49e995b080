"""`iotrace try` runs a session's own program without and with a fix, in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import iotrace
import iotrace_command
from iotrace.analysis.results import LoaderResult
from iotrace.trying.results import NO_HELP, PROVEN, RESULT, SLOWER, UNCLEAR, Trial
from tests.support.recorder_build import RECORDER_GAP
from tests.support.runs import PROJECT, Run

_PROGRAM = PROJECT / "tests/trials/programs/few_workers.py"


def _iotrace(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, iotrace_command.__file__, *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def _kept(folder: Path, done: subprocess.CompletedProcess[str]) -> Trial:
    assert (folder / "trial" / RESULT).exists(), done.stderr
    return msgspec.json.decode((folder / "trial" / RESULT).read_bytes(), type=Trial)


@pytest.mark.slow
def test_a_setting_reaches_every_other_run(tmp_path: Path) -> None:
    done = _iotrace("run", "-q", "-o", "session", "--", sys.executable, str(_PROGRAM), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ("try", "session", "--fix", "IO204", "--yes", "--runs", "6", "--steps", "10", "-o", "trial")
    done = _iotrace(*words, folder=tmp_path)
    found = _kept(tmp_path, done)
    assert done.returncode == (0 if found.proven else 4), done.stderr
    assert found.kind in (PROVEN, NO_HELP, SLOWER, UNCLEAR)
    assert len(found.runs.before_ns) == len(found.runs.after_ns) == 3
    (setting,) = found.settings
    assert (setting.parameter, setting.before) == ("num_workers", "1")
    sessions = sorted((tmp_path / "trial" / "runs").iterdir())
    workers = {str(loader.workers) for path in sessions[3:] for loader in _loaders(path / "session")}
    assert workers == {setting.after}
    assert {loader.workers for loader in _loaders(sessions[0] / "session")} == {1}


def _loaders(session: Path) -> list[LoaderResult]:
    return iotrace.load(session).ranks[0].loaders


@pytest.mark.skipif(bool(RECORDER_GAP), reason=RECORDER_GAP)
def test_data_is_given_as_a_copy_with_other_chunks(
    unet_run: Run, unet_directory: Path, tmp_path: Path
) -> None:
    report = iotrace.load(unet_run.session)
    number = next(
        (n for n, fix in enumerate(report.verdict.fixes, 1) if fix.change and fix.change.stored), None
    )
    if number is None:
        pytest.skip("the run was too busy for a verdict on its files")
    path = next(unet_directory.rglob("case_02.h5"))
    before = path.read_bytes()
    words = ("try", str(unet_run.session), "--fix", str(number), "--runs", "6", "-o", "trial")
    asked = _iotrace(*words, folder=tmp_path)
    assert asked.returncode == 2, asked.stderr
    assert "--yes" in asked.stderr
    assert not (tmp_path / "trial").exists()
    done = _iotrace(*words, "--yes", folder=tmp_path)
    found = _kept(tmp_path, done)
    assert done.returncode == (0 if found.proven else 4), done.stderr
    (data,) = found.data
    assert (data.how, Path(data.path).name) == ("chunks", "case_02.h5")
    assert data.opens == 8  # 16 steps of two samples, of four files
    assert path.read_bytes() == before
    assert Path(data.new_path).exists() == found.proven
