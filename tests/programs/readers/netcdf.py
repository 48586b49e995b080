"""netCDF4: compressed days of one file."""

import os

import clock
import netCDF4
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/days.nc", "needs": ["netCDF4"]}

os.makedirs("data")
with netCDF4.Dataset("data/days.nc", "w") as file:
    for name, size in (("day", 40), ("x", 100000)):
        file.createDimension(name, size)
    days = file.createVariable("t", "f4", ("day", "x"), zlib=True, chunksizes=(1, 100000))
    days[:] = numpy.random.default_rng(0).normal(size=(40, 100000))


class Days(Dataset):
    file = None

    def __len__(self):
        return 120

    def __getitem__(self, index):
        if self.file is None:
            self.file = netCDF4.Dataset("data/days.nc")
        return torch.from_numpy(self.file["t"][index % 40].data[:16])


for batch in clock.steps(DataLoader(Days(), batch_size=2)):
    train(batch, ms=5)
