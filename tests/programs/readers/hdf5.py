"""h5py: one file is compressed, the other is not."""

import os

import clock
import h5py
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/packed.h5"}

os.makedirs("data")
values = numpy.random.default_rng(0).normal(size=(40, 20000)).astype("float32")
for name, options in (("packed", {"chunks": (1, 20000), "compression": "gzip"}), ("plain", {})):
    with h5py.File(f"data/{name}.h5", "w") as file:
        file.create_dataset("values", data=values, **options)


class Rows(Dataset):
    files = None

    def __len__(self):
        return 720

    def __getitem__(self, index):
        if self.files is None:
            self.files = [h5py.File(f"data/{name}.h5")["values"] for name in ("packed", "plain")]
        return torch.from_numpy(self.files[index % 2][index % 40][:16])


for batch in clock.steps(DataLoader(Rows(), batch_size=12)):
    train(batch, ms=12)
