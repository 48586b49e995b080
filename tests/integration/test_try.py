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
from tests.support.runs import PROJECT, environment, run_traced

_PROGRAM = PROJECT / "tests/trials/programs/few_workers.py"
# Reads crops of four files, two a step; one of them is a single compressed chunk. It hardly computes.
_CROPS = """
import h5py, numpy, torch
from torch.utils.data import DataLoader, Dataset

SIDE, CROP = 128, 32

class Crops(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        at = index * CROP % SIDE
        with h5py.File(f"data/case_{index % 4:02}.h5") as file:
            return torch.from_numpy(file["image"][at : at + CROP, :CROP, :CROP])

def make():
    noise = numpy.random.default_rng(0).normal(size=(SIDE,) * 3).astype(numpy.float32)
    for case in range(4):
        chunk = SIDE if case == 2 else CROP
        with h5py.File(f"data/case_{case:02}.h5", "w") as file:
            stored = {"chunks": (chunk,) * 3, "compression": "gzip", "compression_opts": 1}
            file.create_dataset("image", data=noise, **stored)

if __name__ == "__main__":
    import os
    if not os.path.exists("data"):
        os.mkdir("data")
        make()
    torch.set_num_threads(1)
    weight = torch.ones(CROP, requires_grad=True)
    for batch in DataLoader(Crops(), 2, num_workers=1):
        (batch * weight).sum().backward()
"""


def _iotrace(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, iotrace_command.__file__, *words]
    return subprocess.run(
        line, cwd=folder, capture_output=True, text=True, timeout=280, env=environment(), check=False
    )


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
def test_data_is_given_as_a_copy_with_other_chunks(tmp_path: Path) -> None:
    (tmp_path / "crops.py").write_text(_CROPS)
    run = run_traced(tmp_path, ["crops.py"], ["-q", "--torch-steps", "off"])
    assert run.code == 0, run.stderr
    report = iotrace.load(run.session)
    number = next(
        (n for n, fix in enumerate(report.verdict.fixes, 1) if fix.change and fix.change.stored), None
    )
    if number is None:
        pytest.skip("the run was too busy for a verdict on its files")
    path = tmp_path / "data" / "case_02.h5"
    before = path.read_bytes()
    words = ("try", str(run.session), "--fix", str(number), "--runs", "6", "-o", "trial")
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
