"""Read amplification on real files: what accesses touch, which chunks are advised, what they bring when made.

The rewrite that the report writes down is carried out, and what it predicts is counted, in bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import run_script

PROGRAM = """
import os, sys
import h5py, numpy as np, zarr

ROWS, CHUNK, SIDE = 128, 32, 64  # a chunk: 512 KiB; all: four of them

def make():
    for name in ("rz", "wz", "rh", "kh", "ph", "lh"):
        os.mkdir(name)  # files of one directory are one group
    data = np.random.default_rng(0).integers(0, 200, (ROWS, SIDE, SIDE), dtype="i4")
    for name in ("rz/rows.zarr", "wz/whole.zarr"):
        zarr.create_array(name, shape=data.shape, chunks=(CHUNK, SIDE, SIDE), dtype="i4")[:] = data
    for name in ("rh/rows.h5", "kh/kept.h5", "ph/plain.h5", "lh/list.h5"):
        options = {"compression": "gzip", "compression_opts": 1} if name != "ph/plain.h5" else {}
        with h5py.File(name, "w") as file:
            file.create_dataset("images", data=data, chunks=(CHUNK, SIDE, SIDE), **options)

if sys.argv[1] == "make":
    make()
if sys.argv[1] == "again":
    array = zarr.open_array("rz/rows.rechunked.zarr", mode="r")
    for row in range(0, ROWS, 2):
        array[row]
    sys.exit()
if sys.argv[1] == "again-h5":
    with h5py.File("rh/rows.rechunked.h5") as file:
        for row in range(0, ROWS, 2):
            file["images"][row]
    sys.exit()
array = zarr.open_array("rz/rows.zarr", mode="r")
for row in range(0, ROWS, 2):  # true: a chunk is decoded for each row
    array[row]
array = zarr.open_array("wz/whole.zarr", mode="r")
for row in range(0, ROWS, CHUNK):  # all of a chunk is used
    array[row : row + CHUNK]
with h5py.File("rh/rows.h5") as file:
    for row in range(0, ROWS, 2):  # true: who opens a dataset anew has an empty cache
        file["images"][row]
with h5py.File("kh/kept.h5", rdcc_nbytes=8 << 20) as file:
    images = file["images"]
    for row in range(ROWS):  # only alike: HDF5 keeps the decoded chunk for the next row
        images[row]
with h5py.File("ph/plain.h5", rdcc_nbytes=1 << 10) as file:
    images = file["images"]
    for row in range(0, ROWS, 2):  # only alike: of chunks without a filter that no cache holds rows are read
        images[row]
with h5py.File("lh/list.h5") as file:
    file["images"][[1, 5, 9]]
"""
_CHUNK_BYTES, _ROW_BYTES, _ROWS = 32 * 64 * 64 * 4, 64 * 64 * 4, 64


def _amplifications(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (rank,) = report["ranks"]
    found = {}
    for group in rank["file_groups"]:
        for array in (group["amplification"] or {"arrays": []})["arrays"]:
            found[array["path"]] = {**group["amplification"], **array}
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, dict[str, Any]]:
    """What the program that reads all files is told of them."""
    return _amplifications(run_script(directory, PROGRAM, "make").report())


def test_what_is_decoded_for_what_is_used(found: dict[str, dict[str, Any]]) -> None:
    rows = found["rz/rows.zarr"]
    assert (rows["used_bytes"], rows["decoded_bytes"]) == (_ROWS * _ROW_BYTES, _ROWS * _CHUNK_BYTES)
    assert rows["decoded_per_used"] == 32
    assert (rows["access"], rows["suggested_chunk"]) == ([1, 64, 64], [1, 64, 64])
    assert rows["predicted_bytes"] == rows["used_bytes"]
    opened = found["rh/rows.h5"]
    assert opened["decoded_at_most_bytes"] == opened["decoded_at_least_bytes"] == _ROWS * _CHUNK_BYTES
    assert opened["suggested_chunk"] == [1, 64, 64]
    assert opened["command"] == "h5repack -l images:CHUNK=1x64x64 rh/rows.h5 rh/rows.rechunked.h5"


@pytest.mark.parametrize("alike", ["wz/whole.zarr", "kh/kept.h5", "ph/plain.h5", "lh/list.h5"])
def test_what_only_looks_like_it_gets_no_advice(found: dict[str, dict[str, Any]], alike: str) -> None:
    one = found[alike]
    assert one["suggested_chunk"] is None
    assert one["command"] == ""
    if alike == "wz/whole.zarr":
        assert one["decoded_per_used"] == 1
    elif alike == "kh/kept.h5":
        assert one["decoded_at_least_bytes"] == 4 * _CHUNK_BYTES
    elif alike == "ph/plain.h5":
        assert one["decoded_at_most_bytes"] == one["used_bytes"]
    else:
        assert "list" in one["why"]


@pytest.mark.slow
def test_an_advised_rewrite_decodes_what_was_predicted(
    directory: Path, found: dict[str, dict[str, Any]]
) -> None:
    rows = found["rz/rows.zarr"]
    assert rows["command"].startswith("python -c 'import zarr; zarr.from_array(")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(rows["command"], shell=True, check=True, cwd=directory, env={**os.environ, "PATH": path})
    again = _amplifications(run_script(directory, PROGRAM, "again").report())["rz/rows.rechunked.zarr"]
    assert again["decoded_bytes"] == rows["predicted_bytes"] < rows["decoded_bytes"]
    assert again["fetched_bytes"] < rows["fetched_bytes"] / 8
    assert again["used_bytes"] == rows["used_bytes"]
    assert again["suggested_chunk"] is None


@pytest.mark.slow
def test_an_advised_h5repack_decodes_what_was_predicted(
    directory: Path, found: dict[str, dict[str, Any]]
) -> None:
    if shutil.which("h5repack") is None:
        pytest.skip("h5repack is not installed (Debian: hdf5-tools)")
    rows = found["rh/rows.h5"]
    subprocess.run(rows["command"], shell=True, check=True, cwd=directory)
    again = _amplifications(run_script(directory, PROGRAM, "again-h5").report())["rh/rows.rechunked.h5"]
    assert again["decoded_at_most_bytes"] == rows["predicted_bytes"] < rows["decoded_at_least_bytes"]
    assert again["used_bytes"] == rows["used_bytes"]
    assert again["suggested_chunk"] is None


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (5, (1 * 2 * 2, (1, 8, 6))),
        (-1, (1 * 2 * 2, (1, 8, 6))),
        ((slice(2, 6), 3), (2 * 1 * 2, (4, 1, 6))),
        ((..., slice(0, 3)), (3 * 2 * 1, (10, 8, 3))),
        ((slice(None, None, 5), ..., 0), (2 * 2 * 1, (2, 8, 1))),
        (slice(4, 4), None),
        ([1, 2], None),
        (True, None),
        ("field", None),
        ((0, 0, 0, 0), None),
    ],
)
def test_touched_chunks_are_counted(selection: Any, expected: Any) -> None:
    from iotrace.agent.readpaths.chunk_accesses import touch

    assert touch(selection, (10, 8, 6), (4, 5, 3)) == expected


PARQUET = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, torch
from torch.utils.data import DataLoader, Dataset

ROWS, GROUP, WIDTH = 256, 32, 1024
AGAIN = sys.argv[1] == "again"

def make():
    values = np.random.default_rng(0).random(ROWS * WIDTH, dtype="f4")
    table = pa.table({"id": np.arange(ROWS), "x": pa.FixedSizeListArray.from_arrays(values, WIDTH)})
    for name in ("rows.parquet", "whole.parquet", "kept.parquet"):
        pq.write_table(table, name, row_group_size=GROUP, compression="zstd")

class Samples(Dataset):
    def __init__(self):
        self.rows = pq.ParquetFile("rows.regrouped.parquet" if AGAIN else "rows.parquet")
        self.whole, self.kept = pq.ParquetFile("whole.parquet"), pq.ParquetFile("kept.parquet")
        self.last = None
    def __len__(self):
        return ROWS
    def __getitem__(self, index):
        if AGAIN:
            return float(self.rows.read_row_group(index)["id"][0].as_py())
        row = self.rows.read_row_group(index // GROUP)["id"][index % GROUP].as_py()  # true
        if index % GROUP == 0:  # only alike: a sample is a row group
            self.whole.read_row_groups([index // GROUP], columns=["x"])
        if self.last is None or self.last[0] != index // GROUP:  # only alike: it is kept
            self.last = index // GROUP, self.kept.read_row_group(index // GROUP)
        return float(row)

make()
weight = torch.nn.Parameter(torch.zeros(()))
loader = DataLoader(Samples(), batch_size=16)
for _ in range(1 if AGAIN else 2):
    for batch in loader:
        (weight * batch.sum()).backward()
"""


def _row_groups(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (rank,) = report["ranks"]
    known = [group["amplification"] or {} for group in rank["file_groups"]]
    return {each["path"]: {**own, **each} for own in known for each in own.get("row_groups", ())}


@pytest.fixture(scope="module")
def parquet(directory: Path) -> dict[str, Any]:
    """What the program that reads Parquet files is told of them."""
    return run_script(directory, PARQUET, "make").report()


def test_row_groups_that_are_decoded_for_each_row(parquet: dict[str, Any]) -> None:
    found = _row_groups(parquet)
    rows = found["rows.parquet"]
    assert (rows["reads"], rows["groups_read"], rows["groups"], rows["group_rows"]) == (512, 8, 8, 32)
    assert (rows["passes"], rows["decoded_per_pass"]) == (2, 32)
    assert rows["decoded_bytes"] == 64 * rows["distinct_bytes"] > 512 * 32 * 4096
    assert rows["suggested_rows"] == 1
    assert rows["predicted_bytes"] == rows["decoded_bytes"] // 32
    assert (rows["columns_read"], rows["columns"]) == (2, 2)
    assert rows["used_bytes"] is None
    assert "leaves no trace" in rows["why"]
    for alike in ("whole.parquet", "kept.parquet"):
        assert (found[alike]["reads"], found[alike]["decoded_per_pass"]) == (16, 1)
        assert (found[alike]["suggested_rows"], found[alike]["command"]) == (None, "")
    assert found["whole.parquet"]["columns_read"] == 1


@pytest.mark.slow
def test_advised_row_groups_decode_what_was_predicted(directory: Path, parquet: dict[str, Any]) -> None:
    rows = _row_groups(parquet)["rows.parquet"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(rows["command"], shell=True, check=True, cwd=directory, env={**os.environ, "PATH": path})
    again = _row_groups(run_script(directory, PARQUET, "again").report())["rows.regrouped.parquet"]
    assert (again["reads"], again["groups"], again["suggested_rows"]) == (256, 256, None)
    # A row has a byte of validity for each column here, a group of 32 has four: so it is about what was told.
    assert again["decoded_bytes"] == pytest.approx(rows["predicted_bytes"] / 2, rel=0.01)
    assert again["fetched_bytes"] < rows["fetched_bytes"] / 16


WHOLE = """
import os, sys
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq, torch
from torch.utils.data import DataLoader, Dataset

ROWS, GROUP, SAMPLES = 256, 32, 24
FILES = ("table", "frame", "file", "all", "left", "scan", "one", "kept", "filter", "chosen", "take")

def make():
    table = pa.table({"id": np.arange(ROWS), "x": np.random.default_rng(0).random(ROWS)})
    for name in FILES:  # files of one directory are one group
        os.mkdir(name)
        pq.write_table(table, f"{name}/t.parquet", row_group_size=ROWS if name == "chosen" else GROUP)

class Samples(Dataset):
    kept = None
    def __init__(self):
        pq.read_table("filter/t.parquet", columns=["id"])
    def __len__(self):
        return SAMPLES
    def __getitem__(self, index):
        found = pq.read_table("table/t.parquet")["id"][index].as_py()
        pd.read_parquet("frame/t.parquet", columns=["id"])
        pq.ParquetFile("file/t.parquet").read()
        for batch in pq.ParquetFile("all/t.parquet").iter_batches(100):
            pass
        for batch in pq.ParquetFile("left/t.parquet").iter_batches(128):
            break
        for batch in ds.dataset("scan/t.parquet").to_batches(columns=["id"]):
            pass
        for batch in pq.ParquetFile("one/t.parquet").iter_batches(row_groups=[index % 2]):
            pass
        if self.kept is None:  # only alike: read once by each copy of the dataset
            self.kept = pq.read_table("kept/t.parquet")
        for name in ("filter", "chosen"):  # the first: of one row group, as the footer says
            pq.read_table(f"{name}/t.parquet", filters=[("id", "=", index)])
        ds.dataset("take/t.parquet").take([index])
        return float(found)

make()
weight = torch.nn.Parameter(torch.zeros(()))
for _ in range(2):
    for batch in DataLoader(Samples(), batch_size=4, num_workers=int(sys.argv[1])):
        (weight * batch.sum()).backward()
"""
_WHOLE_BYTES, _ID_BYTES = 256 * 2 * 8 + 2 * 32, 256 * 8 + 32  # a bit of validity for each value


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_files_that_are_decoded_whole_for_each_sample(tmp_path: Path, workers: int) -> None:
    report = run_script(tmp_path, WHOLE, str(workers)).report()
    found = _row_groups(report)
    readers = 4 if workers else 1  # of each epoch two
    for name, times, once_bytes in (
        *((name, 24, _WHOLE_BYTES) for name in ("table", "file", "all")),
        *((name, 24, _ID_BYTES) for name in ("frame", "scan")),
        ("left", 12, _WHOLE_BYTES),  # the first half alone
    ):
        one = found[f"{name}/t.parquet"]
        assert (one["whole_reads"], one["decoded_per_pass"]) == (2 * times, times), name
        assert (one["groups_read"], one["reads"]) == (8, 8 * 2 * times)
        assert one["distinct_bytes"] == pytest.approx(once_bytes, rel=0.05)
        assert one["decoded_bytes"] == 2 * times * one["distinct_bytes"]  # as calls in calls count once
        assert one["keep"]
        assert (one["readers"], one["predicted_bytes"]) == (readers, readers * one["distinct_bytes"])
        assert (one["suggested_rows"], one["command"]) == (None, "")
    groups = {group["path"]: group["amplification"] for group in report["ranks"][0]["file_groups"]}
    assert groups["frame/t.parquet"]["decoded_bytes"] == found["frame/t.parquet"]["decoded_bytes"]
    one = found["one/t.parquet"]
    assert (one["groups_read"], one["reads"], one["whole_reads"], one["keep"]) == (2, 48, 0, False)
    kept = found["kept/t.parquet"]
    assert (kept["whole_reads"], kept["keep"]) == (4 if workers else 2, False)  # by each dataset's copy
    for name in ("filter", "chosen", "take"):  # they give fewer rows than they decode
        assert groups[f"{name}/t.parquet"]["decoded_bytes"] is None
        assert "less than they decode" in groups[f"{name}/t.parquet"]["why"]
        assert f"{name}/t.parquet" not in found  # though one column of it was read whole
    read_whole = {group["path"]: group["whole_reads"] for group in report["ranks"][0]["file_groups"]}
    assert read_whole["chosen/t.parquet"]["times_per_pass"] == 24  # the only row group
    assert read_whole["filter/t.parquet"] is None
    advice = [each["remedy"] for each in report["recommendations"]]
    assert any(
        each.startswith("read ") and each.endswith(" once and keep them") for each in advice
    ) or not any(each["id"] == "decode-bound" for each in report["recommendations"])


AGAIN = """
import json, os, sys
import numpy as np, pandas as pd, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

SAMPLES = 24

def make():
    rows = np.random.default_rng(0).random((SAMPLES, 8))
    for name in ("table", "kept", "own", "three", "one", "map", "members"):
        os.mkdir(name)  # files of one directory are one group
    pd.DataFrame(rows).to_csv("table/t.csv")
    pd.DataFrame(rows).to_csv("kept/t.csv")
    np.save("one/t.npy", rows)
    np.save("map/t.npy", rows)
    np.savez("members/t.npz", **{str(number): np.zeros(8192) for number in range(SAMPLES)})
    for number in range(3):
        np.savez("three/{}.npz".format(number), x=rows)
    for number in range(SAMPLES):
        with open("own/{}.json".format(number), "w") as file:
            json.dump(rows[number].tolist(), file)

class Samples(Dataset):
    kept = None
    def __len__(self):
        return SAMPLES
    def __getitem__(self, index):
        found = pd.read_csv("table/t.csv").iloc[index, 1]
        np.load("three/{}.npz".format(index % 3))["x"][index]
        np.load("one/t.npy")[index]
        with open("own/{}.json".format(index)) as file:  # only alike: a file of its own, once an epoch
            json.load(file)
        np.load("map/t.npy", mmap_mode="r")[index]  # only alike: a part of it
        with np.load("members/t.npz") as members:  # likewise
            members[str(index)]
        if self.kept is None:  # only alike: read once by each copy of the dataset
            self.kept = pd.read_csv("kept/t.csv")
        return float(found)

make()
weight = torch.nn.Parameter(torch.zeros(()))
for _ in range(2):
    for batch in DataLoader(Samples(), batch_size=4, num_workers=int(sys.argv[1])):
        (weight * batch.sum()).backward()
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_files_that_each_sample_reads_whole(tmp_path: Path, workers: int) -> None:
    report = run_script(tmp_path, AGAIN, str(workers)).report()
    found = {group["path"]: group["whole_reads"] for group in report["ranks"][0]["file_groups"]}
    readers = 4 if workers else 1  # of each epoch two
    for name, files, per_pass in (("table", 1, 24.0), ("three", 3, 8.0), ("one", 1, 24.0)):
        own = [found.pop(path) for path in list(found) if path.startswith(f"{name}/")]
        assert (sum(one["files"] for one in own), sum(one["times"] for one in own)) == (files, 48)
        for one in own:  # of several files one may stand alone
            assert (one["times_per_pass"], one["readers"], one["fits"]) == (per_pass, readers, True)
            assert one["given_bytes"] == one["files"] * 24 * (9 if name == "table" else 8) * 8
    assert found
    assert not any(found.values())
