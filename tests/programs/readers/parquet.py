"""Parquet by pyarrow: a compressed table of many rows beside small ones."""

import os

import clock
import numpy
import pyarrow
import pyarrow.parquet as parquet
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/large.parquet"}

os.makedirs("data")
pyarrow.set_cpu_count(1)
draw = numpy.random.default_rng(0)
for name, rows in (("large", 400000), ("small", 500)):
    table = pyarrow.table({"value": draw.normal(size=rows).round(2).astype("float32")})
    parquet.write_table(table, f"data/{name}.parquet", compression="gzip")


class Tables(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        table = parquet.read_table(f"data/{'large' if index % 2 else 'small'}.parquet")
        return torch.from_numpy(table["value"][:16].to_numpy().copy())


for batch in clock.steps(DataLoader(Tables(), batch_size=2)):
    train(batch, ms=5)
