"""A loader whose every sample is read by h5py, zarr, numpy, Pillow, pandas, pyarrow, tifffile and torch.

python readers.py WORKERS [STEPS]; with 0 STEPS it makes the data alone.
"""

import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
import torch
import zarr
from PIL import Image
from torch.utils.data import DataLoader, Dataset

DATA = Path("data/readers")
ROWS, COLUMNS = 64, 1024


def make_data() -> None:
    if DATA.exists():
        return
    partial = DATA.with_suffix(".partial")
    partial.mkdir(parents=True)
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    with h5py.File(partial / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(8, COLUMNS), compression="gzip")
    zarr.create_array(str(partial / "a.zarr"), data=values, chunks=(8, COLUMNS))
    np.save(partial / "a.npy", values)
    np.savez_compressed(partial / "a.npz", x=values)
    values.tofile(partial / "a.bin")
    Image.fromarray(values[:, :64].astype(np.uint8)).save(partial / "a.png")
    pd.DataFrame(values[:, :4]).to_csv(partial / "a.csv", index=False)
    pq.write_table(pa.table({"x": values[:, 0]}), partial / "a.parquet")
    tifffile.imwrite(partial / "a.tif", values[:, :64])
    torch.save(torch.from_numpy(values), partial / "a.pt")
    partial.rename(DATA)


class Everything(Dataset):
    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.map = np.memmap(DATA / "a.bin", np.float32, "r", shape=(ROWS, COLUMNS))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        row = index % ROWS
        with h5py.File(DATA / "a.h5") as file:
            sample = file["x"][row]
        sample = sample + zarr.open_array(str(DATA / "a.zarr"), mode="r")[row]
        sample = sample + np.load(DATA / "a.npy")[row] + np.load(DATA / "a.npz")["x"][row]
        sample = sample + np.array(self.map[row]) + torch.load(DATA / "a.pt")[row].numpy()
        with Image.open(DATA / "a.png") as image:
            sample[:64] += np.asarray(image)[row]
        sample[:4] += pd.read_csv(DATA / "a.csv").to_numpy()[row]
        sample[:ROWS] += pq.read_table(DATA / "a.parquet")["x"].to_numpy()
        sample[:64] += tifffile.imread(DATA / "a.tif")[row]
        return torch.from_numpy(sample)


def main() -> None:
    workers, steps = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    make_data()
    torch.set_num_threads(1)
    if not steps:
        return
    model = torch.nn.Linear(COLUMNS, 1)
    for batch in DataLoader(Everything(2 * steps), 2, num_workers=workers):
        model(batch).sum().backward()
    print("trained", steps)


if __name__ == "__main__":
    main()
