"""Files that each worker reads, of real loaders; and loaders whose workers share the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.storage.read_by_each import read_by_each
from iotrace.sources.session import open_session
from tests.support.runs import run_script

PROGRAM = """
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

class Shared(Dataset):
    def __len__(self):
        return 10 * FILES

    def __getitem__(self, index):  # each worker needs each file, and other samples of it
        return np.load(f"{index % FILES}.npy")

for number in range(FILES):
    np.save(f"{number}.npy", np.zeros(1 << 16, "u1"))
loader = DataLoader(Shared() if CASE == "shared" else Stream(), batch_size=2, num_workers=2)
for epoch in range(2):
    for batch in loader:
        pass
"""


@pytest.mark.parametrize(
    ("case", "files", "share"), [("all", 23, 1.0), ("split", 0, 0.0), ("shared", 0, 0.0)]
)
def test_files_that_each_worker_reads(tmp_path: Path, case: str, files: int, share: float) -> None:
    run = run_script(tmp_path, PROGRAM, case)
    assert run.code == 0, run.stderr
    found = read_by_each(SessionAnalysis(open_session(run.session)).ranks[0])
    assert found is not None
    # What worker 0 reads behind its last sample, it reads for no batch.
    assert (found.files, found.workers, found.share) == (files, 2, pytest.approx(share, abs=0.2))
