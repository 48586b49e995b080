"""Changes to the project's workloads: they read and decode real files, and compute on the same CPUs.

Each process runs a workload once; a step is what lies between the lines that it prints.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.benchmarks.predict import Outcome, judged, traced
from tools.benchmarks.steps import Printed, step_seconds

from iotrace.sweeps import cache

_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"


class Real(NamedTuple):
    """A workload with the words before and after the change, and the row of the gains that means it.

    `row` is what the row's id begins with and ends with. `plain` is a file of its data that is stored
    in small chunks without compression for the runs after the change. `cold`: its data are dropped from the
    page cache for the runs before the change, and read into it for those after.
    """

    name: str
    workload: str
    before: list[str]
    after: list[str]
    row: tuple[str, str]
    plain: str = ""
    contended: bool = True
    cold: bool = False


# Reads a file for each batch, and sleeps for a step. A file is read once: what a run finds in the page cache
# was there before.
READER = """
import argparse, os, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path)
parser.add_argument("--steps", type=int)
parser.add_argument("--workers", type=int)
options = parser.parse_args()
torch.set_num_threads(1)
options.data.mkdir(exist_ok=True)
paths = [options.data / f"{number:04}.bin" for number in range(options.steps)]
for path in paths:
    if not path.exists():
        path.write_bytes(os.urandom(2 << 20))
class Files(Dataset):
    def __len__(self):
        return len(paths)
    def __getitem__(self, index):
        whole = 0
        with open(paths[index], "rb", buffering=0) as file:
            while piece := file.read(1 << 16):
                whole += piece[0]
        return torch.tensor(float(whole))
weight = torch.nn.Parameter(torch.ones(1))
for step, batch in enumerate(DataLoader(Files(), num_workers=options.workers), 1):
    (weight * batch).sum().backward()
    time.sleep(0.001)
    if step % 10 == 0:
        print("step", step)
"""
_ONE, _TWO = ["--workers", "1"], ["--workers", "2"]
_OF_TWO = ("num_workers=2", "")
INTERVENTIONS = [
    Real("unet3d: 1 to 2 workers", "unet3d_hdf5", _ONE, _TWO, _OF_TWO),
    Real(
        "unet3d: decode of case_02 gone", "unet3d_hdf5", _ONE, _ONE, ("decode:", "case_02.h5"), "case_02.h5"
    ),
    Real("images: 1 to 2 workers", "images", _ONE, _TWO, _OF_TWO),
    Real("volumes: 1 to 2 workers", "volumes_npz", _ONE, _TWO, _OF_TWO),
    Real("weather: 1 to 2 workers", "weather_zarr", _ONE, _TWO, _OF_TWO),
    Real("files: cold to warm", "files", _ONE, _ONE, ("read", "read"), contended=False, cold=True),
]


def outcomes_of(only: str, steps: int) -> Iterator[Outcome]:
    """Measure each change whose name holds `only`."""
    with tempfile.TemporaryDirectory() as made:
        for number, each in enumerate(one for one in INTERVENTIONS if only in one.name):
            yield _outcome(each, Path(made), number, steps)


def _outcome(each: Real, directory: Path, number: int, steps: int) -> Outcome:
    data = [directory / each.workload] * 2
    program = _WORKLOADS / f"{each.workload}.py"
    if each.cold:
        program = directory / f"{each.workload}.py"
        program.write_text(READER)
    lines = [_line(program, words, data[0], steps) for words in (each.before, each.after)]
    _step_ms(lines[0])  # the data are made on first use
    if each.plain:
        data[1] = directory / f"{each.workload}-plain"
        shutil.copytree(data[0], data[1], dirs_exist_ok=True)
        _store_plain(data[1] / each.plain)
        lines[1] = _line(program, each.after, data[1], steps)

    def prepare(after: bool) -> None:
        if each.cold:
            files = [str(path) for path in sorted(data[0].iterdir())]
            left = (cache.fill if after else cache.drop)(files)
            if left:
                raise SystemExit(
                    f"{len(left)} files are not {'warm' if after else 'cold'}, such as {left[0]}"
                )

    def turns() -> list[float]:
        found = []
        for after in (False, True) * 2:
            prepare(after)
            found.append(_step_ms(lines[after]))
        return found

    prepare(after=False)
    rank = traced(lines[0], directory / f"session-{number}")
    starts, ends = each.row
    rows = [row for row in rank["gain"] if row["id"].startswith(starts) and row["id"].endswith(ends)]
    rows = [row for row in rows if row["change"] != "halved"]
    return judged(each.name, each.contended, rank, rows, turns)


def _line(program: Path, words: list[str], data: Path, steps: int) -> list[str]:
    return [sys.executable, str(program), "--data", str(data), "--steps", str(steps), *words]


def _step_ms(line: list[str]) -> float:
    """Run a workload bare; return its step by the times of its lines."""
    printed: list[Printed] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            printed.append((time.monotonic_ns(), text))
    if process.returncode:
        raise SystemExit(f"{' '.join(line)} failed")
    step_s, _ = step_seconds(printed)
    return 1e3 * (step_s or 0.0)


def _store_plain(path: Path) -> None:
    """Store all of an HDF5 file's arrays in chunks of 32 a side, uncompressed: nothing is left to decode."""
    import h5py

    with h5py.File(path, "r") as old, h5py.File(path.with_suffix(".new"), "w") as new:
        for name, array in old.items():
            new.create_dataset(name, data=array[()], chunks=(32,) * array.ndim)
    path.with_suffix(".new").replace(path)
