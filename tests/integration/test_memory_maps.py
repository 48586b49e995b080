"""Memory maps: page faults on a file that is not in memory are reading, wherever the pages are touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iotrace.session.names import KIND_ITEM, KIND_MAPPED
from iotrace.sources.processes import read_processes
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
