"""Causes by construction: what is put into read, decode, transform, collate and transport comes out there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.runs import run_script

pytestmark = pytest.mark.alone

# A module in h5py's place: its reads block without a POSIX call, as a remote store's would; then it
# decompresses. (A sleep of 0 s would block, too.)
H5PY = """
import time, zlib

PACKED = zlib.compress(bytes(range(256)) * 4096)

class h5f:
    @staticmethod
    def get_name(identifier):
        return b"data/slow.h5"

class Dataset:
    id = None
    def __getitem__(self, index):
        if READ_S:
            time.sleep(READ_S)
        end = time.monotonic() + DECODE_S
        while time.monotonic() < end:
            zlib.decompress(PACKED)
        return index
"""

PROGRAM = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
sys.path.insert(0, {modules!r})
import h5py
h5py.READ_S, h5py.DECODE_S = {read}, {decode}

class Slow(Dataset):
    def __len__(self):
        return {count}
    def __getitem__(self, index):
        if {read} or {decode}:
            h5py.Dataset()[index]
        time.sleep({transform})
        return torch.ones(4)

class Heavy:
    def __init__(self, data):
        self.data = data
    def __reduce__(self):
        time.sleep({transport})
        return Heavy, (self.data,)

def collate(items):
    time.sleep({collate})
    data = default_collate(items)
    return Heavy(data) if {transport} else data

weight = torch.ones(4, requires_grad=True)
batches = 0
for batch in DataLoader(Slow(), batch_size=None if {plain} else 1, num_workers={workers}, collate_fn=collate):
    data = batch.data if {transport} else batch
    (data * weight).sum().backward()
    time.sleep(0.005)
    batches += 1
print("batches", batches)
"""


def causes(directory: Path, workers: int, count: int, **sleeps: float) -> tuple[dict[str, float], dict]:
    modules = directory / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "h5py.py").write_text(H5PY)
    parts = {"read": 0.0, "decode": 0.0, "transform": 0.0, "collate": 0.0, "transport": 0.0, **sleeps}
    run = run_script(
        directory,
        PROGRAM.format(modules=str(modules), workers=workers, count=count, plain=False, **parts),
    )
    assert run.code == 0, run.stderr
    report = run.report()
    rank = report["ranks"][0]
    assert run.stdout == f"batches {count}\n"
    assert rank["loaders"][0]["batches"] == count
    wait = rank["data_wait"]
    assert sum(wait["causes_ms"].values()) == pytest.approx(wait["raw_ms"], abs=1e-6)
    return wait["causes_ms"], rank


@pytest.mark.parametrize(("workers", "count"), [(1, 24), (4, 60)])
def test_read_and_transform_are_split_sixty_to_forty(tmp_path: Path, workers: int, count: int) -> None:
    found, rank = causes(tmp_path, workers, count, read=0.06, transform=0.04)
    share = found["read"] / (found["read"] + found["transform"])
    assert 0.57 <= share <= 0.63
    assert found["read"] + found["transform"] >= 0.9 * rank["data_wait"]["raw_ms"]
    file = rank["data_wait"]["files"][0]
    assert file["path"] == "data/slow.h5"
    assert file["ms"] == pytest.approx(found["read"], rel=0.02)
    assert rank["data_wait"]["too_few_workers"] is True


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cause", ["read", "decode", "transform", "collate", "transport"])
def test_what_was_put_in_comes_out_on_top(tmp_path: Path, cause: str, workers: int) -> None:
    if cause == "decode" and workers > 1 and len(os.sched_getaffinity(0)) < 4:
        # A thread that gave up the interpreter's lock once, and then waits for a core, counts as blocked.
        pytest.skip("two workers that decode, beside the training, need a core each")
    # Workers make batches side by side: each longer, so that as much of it is waited for.
    found, rank = causes(tmp_path, workers, 16, **{cause: 0.1 * workers})
    assert max(found, key=found.__getitem__) == cause
    assert found[cause] >= 0.8 * rank["data_wait"]["raw_ms"]
    assert found["unknown"] <= 0.05 * rank["data_wait"]["raw_ms"]


def test_without_workers_all_of_production_is_wait(tmp_path: Path) -> None:
    found, rank = causes(tmp_path, 0, 16, read=0.02, transform=0.03)
    # The last of the 15 measured steps awaits no batch.
    assert rank["data_wait"]["raw_ms"] >= 50 * 14 / 15
    assert found["transform"] > found["read"] > 15
    assert (found["startup"], found["queued"]) == (0, 0)
    (loader,) = rank["loaders"]
    assert loader["delay_ms"] is None
    assert loader["queue_depth_mean"] is None
