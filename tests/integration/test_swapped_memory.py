"""Memory that goes to swap and is read back, and what only looks so: real programs in a control group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.control_groups import limited
from tests.support.runs import run_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_NEEDED_KB = 2 << 20

# Each worker makes a table of 600 MiB, and samples are 48 of its rows by chance, unless it sleeps instead.
PROGRAM = """
import mmap, os, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

HOW, MIB = {how!r}, 600
if HOW == "mapped":
    with open("table.bin", "wb") as file:
        for _ in range(MIB):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

class Rows(Dataset):
    table = None
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        if self.table is None and HOW == "mapped":
            self.table = np.memmap("table.bin", np.float32, "r").reshape(-1, 1024)
            self.table._mmap.madvise(mmap.MADV_RANDOM)
        elif self.table is None:
            self.table = np.full((MIB * 256, 1024), 1.5, np.float32)
        if HOW == "idle":
            time.sleep(0.004)
            return torch.zeros(1024)
        rows = np.random.default_rng(index).integers(len(self.table), size=48)
        return torch.from_numpy(np.nan_to_num(self.table[rows]).sum(axis=0))

weight = torch.nn.Parameter(torch.zeros(1024))
for batch in DataLoader(Rows(), batch_size=4, num_workers=2):
    (weight * batch).sum().backward()
"""

# The step itself uses rows of a table of 800 MiB by chance; its samples are nothing.
TRAINING = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        return torch.randint(200_000, (256,), generator=torch.Generator().manual_seed(index))

table = torch.full((200_000, 1024), 0.5)
weight = torch.nn.Parameter(torch.zeros(1024))
for batch in DataLoader(Rows(), batch_size=4, num_workers=1):
    (weight * table[batch.flatten()].sum(dim=0)).sum().backward()
"""


def traced(directory: Path, how: str, limit_mib: int) -> tuple[dict[str, Any], int]:
    """The report's rank of such a program, and the bytes that came back from swap."""
    report, came_back = reported(directory, PROGRAM.format(how=how), limit_mib)
    return report["ranks"][0], came_back


def reported(directory: Path, program: str, limit_mib: int) -> tuple[dict[str, Any], int]:
    with limited("memory", "memory.limit_in_bytes", limit_mib << 20) as group:
        run = run_script(directory, program, OMP_NUM_THREADS="1")
        stat = (group / "memory.stat").read_text().split()
    return run.report(), 4096 * int(stat[stat.index("total_workingset_refault_anon") + 1])


@pytest.fixture
def swap() -> None:
    """Skip where the machine has no swap: a test never makes one."""
    text = Path("/proc/meminfo").read_text()
    free_kb = int(text.partition("SwapFree:")[2].split()[0])
    if free_kb < _NEEDED_KB:
        pytest.skip(f"this machine has {free_kb >> 10} MiB of free swap; the test needs {_NEEDED_KB >> 10}")


@pytest.mark.usefixtures("swap")
def test_a_table_that_goes_to_swap_is_named(tmp_path: Path) -> None:
    rank, came_back = traced(tmp_path, "rows", 420)
    assert came_back > 100 << 20
    host = rank["system"]["host"]
    assert 0.5 * came_back <= host["swap_in_bytes"] <= came_back
    workers = [each for each in rank["system"]["processes"] if each["role"] != "main"]
    assert all(each["swap_bytes_peak"] > 100 << 20 for each in workers)
    assert sum(each["swap_in_bytes"] for each in workers) >= 0.5 * host["swap_in_bytes"]
    culprits = {each["id"]: each for each in rank["culprits"]}
    sleeps = rank["data_wait"]["causes_ms"]["read"] >= 0.4 * rank["data_wait"]["raw_ms"]
    assert "swap" in culprits or not sleeps  # on a busy machine the wait is for CPUs


@pytest.mark.usefixtures("swap")
def test_a_table_in_swap_that_nobody_touches_is_not_named(tmp_path: Path) -> None:
    rank, _ = traced(tmp_path, "idle", 420)
    workers = [each for each in rank["system"]["processes"] if each["role"] != "main"]
    assert all(each["swap_bytes_peak"] > 100 << 20 for each in workers)
    assert "swap" not in {each["id"] for each in rank["culprits"]}


def test_faults_of_a_mapped_file_are_no_swap(tmp_path: Path) -> None:
    rank, came_back = traced(tmp_path, "mapped", 4096)
    assert came_back == 0
    assert rank["system"]["host"]["swap_in_bytes"] == 0
    assert sum(each["major_faults"] for each in rank["system"]["processes"]) > 1000
    assert "swap" not in {each["id"] for each in rank["culprits"]}


@pytest.mark.usefixtures("swap")
def test_a_training_whose_own_memory_goes_to_swap_is_advised_to_have_more(tmp_path: Path) -> None:
    report, came_back = reported(tmp_path, TRAINING, 420)
    (rank,) = report["ranks"]
    main = next(each for each in rank["system"]["processes"] if each["role"] == "main")
    assert came_back > 100 << 20
    assert main["swap_in_bytes"] > 50 << 20
    (advice,) = [each for each in report["recommendations"] if each["id"] == "swap"]
    assert advice["gain_ms_per_step"] is None
    assert any("memory in swap" in reason for reason in report["verdict"]["trust"]["reasons"])
