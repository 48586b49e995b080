"""np.load of plain arrays, one far larger than the others."""

import os

import clock
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": ["read", "decode"], "file": "data/large.npy"}

os.makedirs("data")
for name, rows in (("large", 400000), ("small", 500)):
    numpy.save(f"data/{name}.npy", numpy.ones((rows, 16), dtype="float32"))


class Arrays(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        return torch.from_numpy(numpy.load(f"data/{'large' if index % 2 else 'small'}.npy")[:16])


for batch in clock.steps(DataLoader(Arrays(), batch_size=2)):
    train(batch, ms=5)
