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

_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"


class Real(NamedTuple):
    """A workload with the words before and after the change, and the row of the gains that means it.

    `row` is what the row's id begins with and ends with. `plain` is a file of its data that is stored
    in small chunks without compression for the runs after the change.
    """

    name: str
    workload: str
    before: list[str]
    after: list[str]
    row: tuple[str, str]
    plain: str = ""
    contended: bool = True


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
    Real("gpt: cold to warm", "gpt_memmap", [*_ONE, "--cold"], _ONE, ("read", "read"), contended=False),
]


def outcomes_of(only: str, steps: int) -> Iterator[Outcome]:
    """Measure each change whose name holds `only`."""
    with tempfile.TemporaryDirectory() as made:
        for number, each in enumerate(one for one in INTERVENTIONS if only in one.name):
            yield _outcome(each, Path(made), number, steps)


def _outcome(each: Real, directory: Path, number: int, steps: int) -> Outcome:
    data = [directory / each.workload] * 2
    lines = [_line(each, words, data[0], steps) for words in (each.before, each.after)]
    _step_ms(_line(each, each.before, data[0], 20 + 10))  # the data are made on first use, and read once
    if each.plain:
        data[1] = directory / f"{each.workload}-plain"
        shutil.copytree(data[0], data[1], dirs_exist_ok=True)
        _store_plain(data[1] / each.plain)
        lines[1] = _line(each, each.after, data[1], steps)
        _step_ms(_line(each, each.after, data[1], 20 + 10))
    rank = traced(lines[0], directory / f"session-{number}")
    starts, ends = each.row
    rows = [row for row in rank["gain"] if row["id"].startswith(starts) and row["id"].endswith(ends)]
    rows = [row for row in rows if row["change"] != "halved"]
    return judged(each.name, each.contended, rank, rows, lambda: [_step_ms(line) for line in lines * 2])


def _line(each: Real, words: list[str], data: Path, steps: int) -> list[str]:
    program = str(_WORKLOADS / f"{each.workload}.py")
    return [sys.executable, program, "--data", str(data), "--steps", str(steps), *words]


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
