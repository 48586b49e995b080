"""np.load of compressed arrays, one far larger than the others, by two workers."""

import os

import clock
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/large.npz"}

os.makedirs("data")
draw = numpy.random.default_rng(0)
for name, rows in (("large", 60000), ("small", 500)):
    numpy.savez_compressed(f"data/{name}.npz", values=draw.normal(size=(rows, 16)).astype("float32"))


class Arrays(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        with numpy.load(f"data/{'large' if index % 2 else 'small'}.npz") as file:
            return torch.from_numpy(file["values"][:16])


for batch in clock.steps(DataLoader(Arrays(), batch_size=2, num_workers=2)):
    train(batch, ms=5)
