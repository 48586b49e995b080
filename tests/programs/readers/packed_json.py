"""zlib and json: samples are read as bytes, then inflated and parsed by calls that know no file."""

import json
import os
import zlib

import clock
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/large.json.z"}

os.makedirs("data")
for name, count in (("large", 60000), ("small", 16)):
    with open(f"data/{name}.json.z", "wb") as file:
        file.write(zlib.compress(json.dumps([number / 7 for number in range(count)]).encode()))


class Samples(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        with open(f"data/{'large' if index % 2 else 'small'}.json.z", "rb") as file:
            packed = file.read()
        return torch.tensor(json.loads(zlib.decompress(packed))[:16])


for batch in clock.steps(DataLoader(Samples(), batch_size=2)):
    train(batch, ms=5)
