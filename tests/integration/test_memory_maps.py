"""Memory maps: page faults on a file that is not in memory are reading, wherever the pages are touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iotrace.session.names import KIND_ITEM, KIND_MAPPED
from iotrace.sources.processes import read_processes
from tests.support.runs import run_script

pytestmark = pytest.mark.alone

# Each item takes pages from all over the file, so that each is a fault of its own.
PROGRAM = """
import mmap, os, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

ITEMS, PAGES, STRIDE = 16, 48, 64
WAY, WORKERS = sys.argv[1], int(sys.argv[2])

def drop_from_the_page_cache(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

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
    np.save("data.npy", np.ones((PAGES * STRIDE, 1024), np.int32))
    if WAY != "sleep":
        drop_from_the_page_cache("data.npy")
    weight = torch.ones(4, requires_grad=True)
    for batch in DataLoader(Rows(), batch_size=1, num_workers=WORKERS):
        (batch.flatten()[:4] * weight).sum().backward()

if __name__ == "__main__":
    main()
"""

ITEM_BYTES = 48 * 4096


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", ["view", "list"])
def test_page_faults_are_read_and_charged_to_the_mapped_file(tmp_path: Path, way: str, workers: int) -> None:
    run = run_script(tmp_path, PROGRAM, way, str(workers))
    assert run.code == 0, run.stderr
    assert not list(run.session.glob("processes/*/agent.log"))
    process = max(read_processes(run.session)[0], key=lambda process: len(process.spans))
    items = process.spans[process.spans["kind"] == KIND_ITEM]
    mapped = process.spans[process.spans["kind"] == KIND_MAPPED]
    assert {process.texts[name] for name in mapped["name"].tolist()} == {"numpy.memmap.__getitem__"}
    assert {process.texts[file] for file in mapped["file"].tolist()} == {str(tmp_path / "data.npy")}
    assert mapped["bytes"].tolist() == [ITEM_BYTES] * 16
    if items["major_faults"].sum() < 16 * 8:
        pytest.skip("this file system keeps a file in memory that was to be dropped from it")
    wait = run.report()["ranks"][0]["data_wait"]
    assert wait["files"][0]["path"] == "data.npy"
    if workers == 0:
        # A view's faults come in the item after the access, a copy's in the access.
        faulting = items if way == "view" else mapped
        assert np.all(faulting["major_faults"][2:] > 0)
        on_cpu_ns = faulting["cpu_ns"] + np.maximum(faulting["run_delay_ns"], 0)  # or waiting for one
        blocked_ns = (faulting["duration_ns"] - on_cpu_ns)[2:].sum()
        measured = 15
        assert wait["causes_ms"]["read"] * measured == pytest.approx(blocked_ns / 1e6, rel=0.1)
        assert wait["files"][0]["read_ms"] == pytest.approx(wait["causes_ms"]["read"], rel=0.1)


def test_a_dataset_that_sleeps_over_a_memory_map_transforms(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM, "sleep", "0")
    assert run.code == 0, run.stderr
    causes = run.report()["ranks"][0]["data_wait"]["causes_ms"]
    assert causes["transform"] >= 9
    assert causes["read"] < 0.5


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
