"""Files that each worker reads, of real loaders; and loaders whose workers share the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.storage.read_by_each import read_by_each
from iotrace.sources.session import open_session
from tests.support.runs import run_script

PROGRAM = """
import gzip
import os
import sys

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

CASE, FILES = sys.argv[1], 24

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        for number in range(FILES):
            if CASE == "split" and number % 2 != worker.id:
                continue
            array = np.load(f"{number}.npy")
            if number % 2 == worker.id:
                yield array

class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        with gzip.open("all.gz" if CASE == "whole" else f"part{worker.id}.gz", "rb") as file:
            for number, line in enumerate(file):
                if CASE == "parts" or number % 2 == worker.id:
                    yield len(line)

class Unshared(IterableDataset):  # each worker gives all samples; or each its own, by its number
    def __iter__(self):
        worker = get_worker_info() if CASE == "own" else None
        for number in range(3):
            if worker is not None and number % 2 != worker.id:
                continue
            with open(f"{number}.txt", buffering=512) as file:
                for line in file:
                    yield len(line)

class Looked(IterableDataset):  # a table that each worker looks at first
    def __iter__(self):
        with open("0.txt") as file:
            table = file.read()
        for number in range(400):
            yield len(table)

class Windows(IterableDataset):
    def __iter__(self):  # each byte is read twice, by the worker whose part it is in
        half, step = os.path.getsize("all.gz") // 2, 1 << 14
        with open("all.gz", "rb", buffering=0) as file:
            for at in range(get_worker_info().id * half, (get_worker_info().id + 1) * half - step, step // 2):
                file.seek(at)
                yield len(file.read(step))

class Shared(Dataset):
    def __len__(self):
        return 10 * FILES

    def __getitem__(self, index):  # each worker needs each file, and other samples of it
        return np.load(f"{index % FILES}.npy")

for number in range(FILES):
    np.save(f"{number}.npy", np.zeros(1 << 16, "u1"))
for number in range(3):
    with open(f"{number}.txt", "w") as file:
        file.write(("x" * 200 + "\\n") * 100)
for name in ("all", "part0", "part1"):
    with gzip.open(f"{name}.gz", "wb", compresslevel=1) as file:
        for number in range(400):
            file.write(os.urandom(3000).hex().encode() + b"\\n")
known = {"shared": Shared, "whole": Lines, "parts": Lines, "windows": Windows}
known |= {"twice": Unshared, "own": Unshared, "table": Looked}
loader = DataLoader(known.get(CASE, Stream)(), batch_size=2, num_workers=2)
for epoch in range(2):
    for batch in loader:
        pass
"""


@pytest.mark.parametrize(
    ("case", "files", "share"),
    [("all", 23, 1.0), ("split", 0, 0.0), pytest.param("shared", 0, 0.0, marks=pytest.mark.slow)],
)
def test_files_that_each_worker_reads(tmp_path: Path, case: str, files: int, share: float) -> None:
    run = run_script(tmp_path, PROGRAM, case)
    assert run.code == 0, run.stderr
    found = read_by_each(SessionAnalysis(open_session(run.session)).ranks[0], None)
    if case == "shared":  # samples have indices: each worker makes its own
        assert found is None
        return
    assert found is not None
    # What worker 0 reads behind its last sample, it reads for no batch.
    assert (found.files, found.workers, found.share) == (files, 2, pytest.approx(share, abs=0.2))


@pytest.mark.parametrize(
    ("case", "stream"),
    [("whole", "all.gz"), pytest.param("parts", "", marks=pytest.mark.slow), ("windows", "")],
)
def test_a_stream_that_each_worker_reads(tmp_path: Path, case: str, stream: str) -> None:
    run = run_script(tmp_path, PROGRAM, case)
    assert run.code == 0, run.stderr
    analysis = SessionAnalysis(open_session(run.session))
    io = analyse(analysis).ranks[0].io
    assert io is not None
    found = read_by_each(analysis.ranks[0], io)
    assert ("" if found is None else found.stream) == stream


@pytest.mark.parametrize(
    ("case", "files", "asked"),
    [("twice", 3, False), ("own", 0, True), pytest.param("table", 0, False, marks=pytest.mark.slow)],
)
def test_workers_that_do_not_know_their_part(tmp_path: Path, case: str, files: int, asked: bool) -> None:
    run = run_script(tmp_path, PROGRAM, case)
    assert run.code == 0, run.stderr
    analysis = SessionAnalysis(open_session(run.session))
    report = analyse(analysis).ranks[0]
    found = read_by_each(analysis.ranks[0], report.io)
    assert (0 if found is None else found.files) == files
    assert found is None or (found.asked is asked and not found.init)
    told = [each.evidence.get("times") for each in report.culprits if each.code == "IO411"]
    assert told == ([2.0] if case == "twice" else [])
    assert [(each.epochs, each.epochs_ended) for each in report.loaders] == [(2, 2)]
