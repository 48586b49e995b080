"""Memory maps: page faults on a file that is not in memory are reading, wherever the pages are touched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from iotrace.session.names import KIND_ITEM, KIND_MAPPED
from iotrace.sources.processes import read_processes
from iotrace.sources.records import Mapped
from tests.support.pagecache import drop
from tests.support.runs import run_script

# Each item takes pages from all over the file, so that each is a fault of its own.
PROGRAM = """
import mmap, os, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

ITEMS, PAGES, STRIDE = 16, 48, 64
WAY, WORKERS = sys.argv[1], int(sys.argv[2])

class Rows(Dataset):
    data = None
    def __len__(self):
        return ITEMS
    def __getitem__(self, index):
        if self.data is None:
            self.data = np.load("data.npy", mmap_mode="r")
            self.data._mmap.madvise(mmap.MADV_RANDOM)
        if WAY == "sleep":
            time.sleep(0.01)
            return torch.from_numpy(self.data[:PAGES] + 1)
        if WAY == "list":
            return torch.from_numpy(self.data[list(range(index, len(self.data), STRIDE))])
        return torch.from_numpy(self.data[index::STRIDE].astype(np.float32))

def main():
    weight = torch.ones(4, requires_grad=True)
    for batch in DataLoader(Rows(), batch_size=1, num_workers=WORKERS):
        (batch.flatten()[:4] * weight).sum().backward()

if __name__ == "__main__":
    main()
"""

ITEM_BYTES = 48 * 4096


def make_data(directory: Path) -> Path:
    path = directory / "data.npy"
    np.save(path, np.ones((48 * 64, 1024), np.int32))
    return path


@pytest.mark.parametrize(
    ("way", "workers"),
    [("view", 0), ("list", 0), ("view", 1), pytest.param("list", 1, marks=pytest.mark.slow)],
)
def test_page_faults_are_read_and_charged_to_the_mapped_file(tmp_path: Path, way: str, workers: int) -> None:
    drop(make_data(tmp_path))
    run = run_script(tmp_path, PROGRAM, way, str(workers))
    assert run.code == 0, run.stderr
    assert not list(run.session.glob("processes/*/agent.log"))
    process = max(read_processes(run.session)[0], key=lambda process: len(process.spans))
    items = process.spans[process.spans["kind"] == KIND_ITEM]
    mapped = process.spans[process.spans["kind"] == KIND_MAPPED]
    assert {process.texts[name] for name in mapped["name"].tolist()} == {"numpy.memmap.__getitem__"}
    assert {process.texts[file] for file in mapped["file"].tolist()} == {str(tmp_path / "data.npy")}
    assert mapped["bytes"].tolist() == [ITEM_BYTES] * 16
    assert items["major_faults"].sum() >= 16 * 8
    wait = run.report()["ranks"][0]["data_wait"]
    assert wait["files"][0]["path"] == "data.npy"
    (group,) = [each for each in run.report()["ranks"][0]["file_groups"] if each["path"] == "data.npy"]
    used = group["amplification"]
    assert used["used_bytes"] == 16 * ITEM_BYTES
    # Neither rows by a list nor every 64th are one piece of the file: on which pages they lie is not known.
    assert (used["mapped"]["accesses"], used["mapped"]["touched_bytes"]) == (16, None)
    assert used["mapped"]["major_faults"] == items["major_faults"].sum()
    assert used["mapped"]["predicted_bytes"] is None
    if used["fetched_bytes"] is not None:
        assert used["fetched_bytes"] >= 16 * ITEM_BYTES / 2  # each page once, but for those that were there
    if workers == 0:
        # A view's faults come in the item after the access, a copy's in the access.
        faulting = items if way == "view" else mapped
        assert np.all(faulting["major_faults"][2:] > 0)
        # What the file costs is all that is read; on a busy machine a fault waits for a CPU, too.
        assert wait["files"][0]["read_ms"] + sum((wait["without_cpu_ms"] or {}).values()) > 0
        assert wait["files"][0]["read_ms"] <= wait["causes_ms"]["read"] + 1e-6


def test_a_dataset_that_sleeps_over_a_memory_map_transforms(tmp_path: Path) -> None:
    make_data(tmp_path)
    run = run_script(tmp_path, PROGRAM, "sleep", "0", OMP_NUM_THREADS="1")
    assert run.code == 0, run.stderr
    causes = run.report()["ranks"][0]["data_wait"]["causes_ms"]
    assert causes["read"] < causes["transform"]


def test_small_results_of_a_memory_map_leave_no_span(tmp_path: Path) -> None:
    program = """
import numpy as np
np.save("data.npy", np.arange(4096.0))
mapped = np.load("data.npy", mmap_mode="r")
print(sum(mapped[i] for i in range(100)), mapped[[1, 2]].sum(), mapped[:10].sum(), mapped[:512].nbytes)
"""
    run = run_script(tmp_path, program)
    assert run.stdout == "4950.0 3.0 45.0 4096\n", run.stderr
    (process,) = read_processes(run.session)[0]
    assert process.spans["kind"].tolist().count(KIND_MAPPED) == 1
    told = process.of_type(Mapped)[-1]
    assert (told.accesses, told.bytes, told.odd) == (3, 8 * (2 + 10) + 4096, 1)
    assert told.elements >= 100  # numpy takes one out of what a sum returns
    # Where a piece of the file begins is not looked at: it may lie on two pages.
    assert (told.pages, told.page_bytes) == (2 * 2, mmap.PAGESIZE) or mmap.PAGESIZE != 4096


CROPS = """
import os, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Crops(Dataset):
    data = None
    starts = np.random.default_rng(0).integers(0, os.path.getsize("data.bin") // 2 - 1024, 300).tolist()
    def __len__(self):
        return 300
    def __getitem__(self, index):
        if self.data is None:
            self.data = np.memmap("data.bin", np.uint16, "r")
        start = self.starts[index] if sys.argv[1] == "crops" else 1024 * index
        return torch.from_numpy(self.data[start : start + 1024].astype(np.int64))

weight = torch.nn.Parameter(torch.zeros(()))
for batch in DataLoader(Crops(), batch_size=4):
    (weight * batch.sum()).backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["crops", "order"])
def test_what_is_read_around_pages_that_were_asked_for(tmp_path: Path, way: str) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(0).bytes(1 << 20) * 256)
    drop(path)
    report = run_script(tmp_path, CROPS, way).report()
    (group,) = [each for each in report["ranks"][0]["file_groups"] if each["path"] == "data.bin"]
    found = group["amplification"]
    assert (found["used_bytes"], found["mapped"]["accesses"]) == (300 * 2048, 300)
    touched = found["mapped"]["touched_bytes"]
    assert touched == 300 * 2 * 4096 or mmap.PAGESIZE != 4096
    fetched = found["fetched_bytes"]
    # How far a kernel reads around is the device's setting: 128 KiB or some MiB.
    told = fetched is not None and fetched >= 64 * touched
    assert found["mapped"]["predicted_bytes"] == (touched if told else None)
    remedies = [each["remedy"] for each in report["recommendations"]]
    if way == "order":
        assert not told
    elif told and report["ranks"][0]["data_wait"]["causes_ms"]["read"] > 0.1 * group["ms"]:
        assert any("MADV_RANDOM" in each for each in remedies) or not any(
            each["id"] == "read-bound" for each in report["recommendations"]
        )


OWN = """
import mmap
import torch
from torch.utils.data import DataLoader, Dataset

class Pages(Dataset):
    data = None
    def __len__(self):
        return 32
    def __getitem__(self, index):
        if self.data is None:
            with open("data.bin", "rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.data.madvise(mmap.MADV_RANDOM)
        return float(sum(self.data[(48 * index + at) * 16 * mmap.PAGESIZE] for at in range(48)))

weight = torch.nn.Parameter(torch.zeros(()))
for batch in DataLoader(Pages(), batch_size=1, num_workers=1):
    (weight * batch.sum()).backward()
"""


@pytest.mark.parametrize("cold", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_pages_of_a_map_of_the_programs_own(tmp_path: Path, cold: bool) -> None:
    """What its page faults fetched is told, at least, and of which file; what was used leaves no trace."""
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(0).bytes(1 << 20) * (32 * 48 * 16 * mmap.PAGESIZE >> 20))
    if cold:
        drop(path)
    run = run_script(tmp_path, OWN)
    (rank,) = run.report()["ranks"]
    (group,) = [each for each in rank["file_groups"] if each["path"] == "data.bin"]
    found = group["amplification"]
    assert (found["used_bytes"], found["decoded_bytes"], found["mapped"]) == (None, None, None)
    assert "leaves no trace" in found["why"]
    faults = sum(
        int(process.spans["major_faults"][process.spans["kind"] == KIND_ITEM].sum())
        for process in read_processes(run.session)[0]
    )
    if cold and faults > 32 * 24:  # else the file system had it in memory all the same
        # A worker that is ahead makes nobody wait.
        if rank["data_wait"]["causes_ms"]["read"] > 0.1:
            assert "data.bin" in {each["path"] for each in rank["data_wait"]["files"]}
        if found["fetched_bytes"] is not None:
            assert 32 * 24 * mmap.PAGESIZE < found["fetched_bytes"] < 2 * 32 * 48 * mmap.PAGESIZE
    elif not faults:
        assert not found["fetched_bytes"] or found["fetched_bytes"] < 32 * 24 * mmap.PAGESIZE
