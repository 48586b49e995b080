"""A file is read whole and the work follows: transform after reading that file."""

import os
import time

import clock
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "transform", "after": "data/slow.npy"}

os.makedirs("data")
for name in ("slow", "quick"):
    numpy.save(f"data/{name}.npy", numpy.ones(16, dtype="float32"))


class Arrays(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        name = "slow" if index % 2 else "quick"
        values = torch.from_numpy(numpy.load(f"data/{name}.npy"))
        time.sleep(0.02 if name == "slow" else 0.001)
        return values


for batch in clock.steps(DataLoader(Arrays(), batch_size=4)):
    train(batch, ms=5)
