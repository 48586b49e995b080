"""Each sample takes a crop of one large chunk of a file that is opened to write: no copy can stand for it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

PATH, SIDE, CROP = Path("volume.h5"), 136, 34


class Crops(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        place = (index * 7 % (SIDE // CROP)) * CROP
        with h5py.File(PATH, "r+") as file:
            return torch.from_numpy(file["image"][place : place + CROP, :CROP, :CROP])


if __name__ == "__main__":
    if not PATH.exists():
        values = np.random.default_rng(0).normal(size=(SIDE,) * 3).astype(np.float32)
        with h5py.File(PATH, "w") as file:
            file.create_dataset(
                "image", data=values, chunks=values.shape, compression="gzip", compression_opts=1
            )
    train(DataLoader(Crops(), 2, num_workers=1))
