"""Whose fault a wait is, on real programs: one in which it is true, others in which it only looks so."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.control_groups import limited
from tests.support.runs import run_script
from tests.support.waiting import TURNS

# It goes on until its workers have been sampled.
PROGRAM = (
    TURNS
    + """
import os, sys, time, zlib
import torch
from torch.utils.data import DataLoader, Dataset

BOUND, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
PACKED = zlib.compress(bytes(range(256)) * 16384)

class Samples(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if SLEEP_S:
            time.sleep(SLEEP_S)
        else:
            for _ in range(3):
                zlib.decompress(PACKED)
        return torch.zeros(4)

def bind(number):
    if BOUND:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

weight = torch.nn.Parameter(torch.zeros(4))
for number, batch in enumerate(DataLoader(Samples(), batch_size=4, num_workers=4, worker_init_fn=bind)):
    (weight * batch).sum().backward()
    if number == 0:
        seen = turns()
    if number >= 39 and turns() >= seen + 4:
        break
"""
)


@pytest.mark.parametrize(
    ("bound", "sleep_s"),
    [
        (1, 0.0),
        pytest.param(0, 0.0, marks=pytest.mark.slow),
        pytest.param(1, 0.02, marks=pytest.mark.slow),  # slow storage: workers on one CPU sleep
        pytest.param(0, 0.02, marks=pytest.mark.slow),
    ],
)
def test_workers_that_share_one_cpu(tmp_path: Path, bound: int, sleep_s: float) -> None:
    report = run_script(tmp_path, PROGRAM, str(bound), str(sleep_s)).report()
    (rank,) = report["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    masks = {tuple(process["cpus"]) for process in workers}
    usable = rank["system"]["cpus_usable"]
    if len(usable) == 1:
        pytest.skip("one CPU: nothing can be bound")
    assert masks == ({(min(usable),)} if bound else {tuple(usable)})
    verdict = report["verdict"]
    culprits = [culprit["id"] for culprit in rank["culprits"]]
    if bound and not sleep_s:
        assert "cpu-binding" in culprits
        # What can be mended goes before other programs, which nobody here can end.
        mended = [each["id"] for each in rank["culprits"] if each["leads"] and each["remedy"]]
        assert verdict["culprit"] == [*mended, *culprits][0]
        if culprits[0] == "cpu-binding":
            assert verdict["why"].startswith(f"4 workers share CPU {min(usable)}: ")
            assert verdict["fixes"][0]["id"] == "cpu-binding"
        assert "too-few-workers" not in [fix["id"] for fix in verdict["fixes"]]
        spent = rank["data_wait"]["without_cpu_ms"]
        assert all(spent[cause] <= rank["data_wait"]["causes_ms"][cause] for cause in spent)
    elif not bound:
        assert "cpu-binding" not in culprits


LIBRARY = """
import sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        found = np.ones((300, 300), np.float32)
        for _ in range(10 if sys.argv[1] == "multiplies" else 0):
            found = found @ found
            found /= found.max()
        time.sleep(0.01 if sys.argv[1] == "sleeps" else 0)
        return torch.zeros(4)

weight = torch.nn.Parameter(torch.zeros(4))
for batch in DataLoader(Samples(), batch_size=4, num_workers=4):
    (weight * batch).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["multiplies", "sleeps"])
def test_threads_of_a_library_in_each_worker(tmp_path: Path, work: str) -> None:
    cpus = len(os.sched_getaffinity(0))
    report = run_script(tmp_path, LIBRARY, work).report()
    (rank,) = report["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    assert {process["library_threads"].get("openblas") for process in workers} <= {cpus, None}
    culprits = [culprit["id"] for culprit in rank["culprits"]]
    if work == "multiplies":
        assert culprits[0] == "threads"
        assert report["verdict"]["fixes"][0]["id"] == "threads"
    else:
        assert "threads" not in culprits


ZARR = """
import sys, time
import numpy as np
import torch, zarr
from torch.utils.data import DataLoader, Dataset

class Fields(Dataset):
    array = None
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if self.array is None:
            self.array = zarr.open_array("fields.zarr", mode="r")
        if sys.argv[1] == "sleeps":
            time.sleep(0.1)
            return torch.from_numpy(self.array[index, :1])
        return torch.from_numpy(self.array[index])

array = zarr.create_array("fields.zarr", shape=(48, 64, 256, 64), chunks=(1, 4, 256, 64), dtype="f4")
values = np.random.default_rng(0).normal(size=(64, 256, 64)).round(1)
for index in range(48):
    array[index] = values
weight = torch.nn.Parameter(torch.zeros(()))
for batch in DataLoader(Fields(), batch_size=2, num_workers=4):
    (weight * batch.sum()).backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["decodes", "sleeps"])
def test_zarrs_threads_in_each_worker(tmp_path: Path, work: str) -> None:
    report = run_script(tmp_path, ZARR, work).report()
    (rank,) = report["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    assert all("blosc" not in process["library_threads"] for process in workers)
    named = [each for each in rank["culprits"] if each["id"] == "threads"]
    if work == "sleeps":
        assert not [each for each in named if each["evidence"]["library"] == "zarr"]
        return
    # Two batches of the queue ahead, at most, were read before a worker's threads were first counted.
    told = [process["library_threads"]["zarr"] for process in workers]
    assert len(told) == 4
    assert all(2 <= count <= process["threads_peak"] for count, process in zip(told, workers, strict=True))
    usable = len(rank["system"]["cpus_usable"])
    assert sum(told) >= 2 * usable or usable > 4  # of which the rule says that they are too many
    busy = [process["pool_busy_pct_mean"] for process in workers]
    assert None not in busy
    if named and max(told) > usable:  # nothing else started as many
        assert {each["evidence"]["library"] for each in named} == {"zarr"}
        assert {each["evidence"]["threads"] for each in named} == {sum(told)}
        assert all("async.concurrency" in each["remedy"] for each in named)


@pytest.mark.slow
def test_with_one_thread_of_zarr_in_each_worker_none_are_named(tmp_path: Path) -> None:
    """The remedy, made: as many chunks are decoded, and no thread is beyond what CPUs are there for."""
    program = ZARR.replace(
        "num_workers=4)", "num_workers=4, worker_init_fn=lambda _: zarr.config.set({'async.concurrency': 1}))"
    )
    assert program != ZARR
    (rank,) = run_script(tmp_path, program, "decodes").report()["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    assert {process["library_threads"].get("zarr") for process in workers} == {1}
    assert not [
        each for each in rank["culprits"] if each["id"] == "threads" and each["evidence"]["library"] == "zarr"
    ]
    (group,) = [each for each in rank["file_groups"] if each["path"].startswith("fields.zarr")]
    assert group["amplification"]["decoded_bytes"] == 48 * 64 * 256 * 64 * 4


BLOSC2 = """
import sys, time
import blosc2, numpy as np, torch
from torch.utils.data import DataLoader, Dataset

PACKED = open("packed.bin", "rb").read()

class Samples(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        if sys.argv[1] == "sleeps":
            time.sleep(0.02)
            return torch.zeros(4)
        return torch.from_numpy(np.frombuffer(blosc2.decompress2(PACKED), "f4")[:4].copy())

weight = torch.nn.Parameter(torch.zeros(4))
for batch in DataLoader(Samples(), batch_size=4, num_workers=4):
    (weight * batch).sum().backward()
print(blosc2.nthreads)
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", ["inflates", "sleeps"])
def test_inflating_on_threads_that_have_no_cpu_is_no_reading(tmp_path: Path, work: str) -> None:
    """No account is left of threads of blosc2, which come and go with calls; they wait for CPUs alone."""
    blosc2 = pytest.importorskip("blosc2")
    values = np.random.default_rng(0).normal(size=(256, 256, 32)).astype("f4").round(1)
    (tmp_path / "packed.bin").write_bytes(blosc2.compress2(values, typesize=4))
    run = run_script(tmp_path, BLOSC2, work)
    (rank,) = run.report()["ranks"]
    workers = [process for process in rank["system"]["processes"] if process["role"] != "main"]
    assert {process["library_threads"].get("blosc2") for process in workers} == {int(run.stdout.split()[-1])}
    named = [each for each in rank["culprits"] if each["id"] == "threads"]
    assert "blosc2" not in [each["evidence"]["library"] for each in named]
    if work == "inflates":
        # Of what is in memory nothing is read, whatever else took the CPUs.
        assert rank["data_wait"]["causes_ms"]["read"] == pytest.approx(0, abs=0.05)
        assert rank["data_wait"]["causes_ms"]["decode"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("sleep_s", [0.0, 0.02])
def test_a_quota_that_holds_the_job_back(tmp_path: Path, sleep_s: float) -> None:
    with limited("cpu", "cpu.cfs_quota_us", 20_000) as group:
        run = run_script(tmp_path, PROGRAM, "0", str(sleep_s), OMP_NUM_THREADS="1")
        held = int((group / "cpu.stat").read_text().split("nr_throttled")[1].split()[0])
    report = run.report()
    (rank,) = report["ranks"]
    culprits = [culprit["id"] for culprit in rank["culprits"]]
    if sleep_s:
        assert held  # its imports were
        assert "cpu-quota" not in culprits
    elif rank["system"]["host"]["cpu_throttled_fraction"] >= 0.1:  # else others left it less than that
        assert culprits[0] == "cpu-quota"
        assert report["verdict"]["why"].startswith("the CPU quota stopped the job in ")
        assert report["verdict"]["fixes"][0]["id"] == "cpu-quota"
