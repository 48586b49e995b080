"""Read paths of real libraries: each read has a span with its file and bytes, and its file is charged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.records import read_processes
from tests.support.runs import run_script

PROGRAM = """
import io, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

KIND, WORKERS = sys.argv[1], int(sys.argv[2])

def write():
    if KIND == "npy":
        np.save("data.npy", np.ones((64, 64), np.float32))
    elif KIND == "npz":
        np.savez_compressed("data.npz", x=np.ones((64, 64), np.float32))
    elif KIND == "fromfile":
        np.ones((64, 64), np.float32).tofile("data.bin")
    elif KIND == "zarr":
        import zarr
        array = zarr.create_array("data.zarr", shape=(64, 64), chunks=(16, 64), dtype="f4")
        array[:] = 1
    elif KIND == "torch":
        torch.save(torch.ones(64, 64), "data.pt")
    elif KIND == "png":
        from PIL import Image
        Image.fromarray(np.ones((64, 64), np.uint8)).save("data.png")
    elif KIND == "h5":
        import h5py
        with h5py.File("data.h5", "w") as file:
            file["x"] = np.ones((64, 64), np.float32)

def read():
    if KIND == "npy":
        return np.load("data.npy")
    if KIND == "npz":
        with np.load("data.npz") as archive:
            return archive["x"]
    if KIND == "fromfile":
        return np.fromfile("data.bin", np.float32).reshape(64, 64)
    if KIND == "zarr":
        import zarr
        return zarr.open("data.zarr", mode="r")[:]
    if KIND == "torch":
        return torch.load("data.pt").numpy()
    if KIND == "png":
        from PIL import Image
        with Image.open("data.png") as image:
            return np.asarray(image).astype(np.float32)
    import h5py
    with h5py.File("data.h5") as file:
        out = np.empty((64, 64), np.float32)
        file["x"].read_direct(out)
        return out

class Files(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.from_numpy(read())

def main():
    write()
    weight = torch.ones(64, requires_grad=True)
    total = 0.0
    for batch in DataLoader(Files(), batch_size=2, num_workers=WORKERS):
        (batch @ weight).sum().backward()
        total += batch.sum().item()
    print(total)

if __name__ == "__main__":
    main()
"""

PIXELS = 64 * 64 * 4
CASES = [
    ("npy", "numpy.load", "data.npy", PIXELS),
    ("npz", "numpy.NpzFile.__getitem__", "data.npz", PIXELS),
    ("fromfile", "numpy.fromfile", "data.bin", PIXELS),
    ("zarr", "zarr.Array.__getitem__", "data.zarr", PIXELS),
    ("torch", "torch.load", "data.pt", -1),
    ("png", "PIL.ImageFile.load", "data.png", -1),
    ("h5", "h5py.Dataset.read_direct", "data.h5", PIXELS),
]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("kind", "name", "file", "size_bytes"), CASES, ids=[case[0] for case in CASES])
def test_every_read_has_a_span_with_its_file(
    tmp_path: Path, kind: str, name: str, file: str, size_bytes: int, workers: int
) -> None:
    run = run_script(tmp_path, PROGRAM, kind, str(workers))
    assert run.code == 0, run.stderr
    assert json.loads(run.stdout) == 8 * 64 * 64
    assert not list(run.session.glob("processes/*/agent.log"))
    found = [
        (process.texts[span["name"]], process.texts.get(span["file"], ""), int(span["bytes"]))
        for process in read_processes(run.session)
        for span in process.spans
        if span["kind"] == KIND_READ_PATH
    ]
    reads = [row for row in found if row[0] == name]
    # PIL asks for the pixels more than once; the first time decodes them.
    assert len(reads) >= 8 if kind == "png" else len(reads) == 8
    assert {Path(path).name for _, path, _ in reads} == {file}
    assert {size for _, _, size in reads} == {size_bytes}
    if workers == 0:  # a worker is far ahead of this loop: nothing of its reading is waited for
        wait = run.report()["ranks"][0]["data_wait"]
        assert any(path["path"].split("/")[0] == file for path in wait["files"])
        assert wait["causes_ms"]["decode"] + wait["causes_ms"]["read"] > 0
