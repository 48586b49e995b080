"""Memory too small for the files, and files read for the first time: real programs in a control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.control_groups import limited
from tests.support.runs import run_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# 600 MiB, read in pieces chosen by chance, after the file was taken out of memory.
PROGRAM = """
import os
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

PATH, SIZE, PIECE = "pages.bin", 600 << 20, 1 << 20
with open(PATH, "wb") as file:
    for _ in range(SIZE // PIECE):
        file.write(os.urandom(PIECE))
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

class Pieces(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        numbers = np.random.default_rng(index).integers(SIZE // PIECE, size=16)
        with open(PATH, "rb", buffering=0) as file:
            pieces = [os.pread(file.fileno(), PIECE, number * PIECE)[:64] for number in numbers.tolist()]
        return torch.from_numpy(np.frombuffer(b"".join(pieces), np.uint8).astype(np.float32))

weight = torch.nn.Parameter(torch.zeros(1024))
for batch in DataLoader(Pieces(), batch_size=4, num_workers=2):
    (weight * batch).sum().backward()
"""


@pytest.mark.parametrize("limit_mib", [420, 4096])
def test_memory_that_the_files_do_not_fit_in(tmp_path: Path, limit_mib: int) -> None:
    with limited("memory", "memory.limit_in_bytes", limit_mib << 20) as group:
        run = run_script(tmp_path, PROGRAM, OMP_NUM_THREADS="1")
        stat = (group / "memory.stat").read_text().split()
    refaulted_bytes = 4096 * int(stat[stat.index("total_workingset_refault_file") + 1])
    (rank,) = run.report()["ranks"]
    culprits = [culprit["id"] for culprit in rank["culprits"]]
    reads = rank["data_wait"]["causes_ms"]["read"] >= 0.25 * rank["data_wait"]["raw_ms"]
    if limit_mib == 420:
        assert refaulted_bytes > 500 << 20
        assert "memory-full" in culprits or not reads  # on a busy machine the wait is for CPUs
    else:
        assert "memory-full" not in culprits
