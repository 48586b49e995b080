"""safetensors: a large shard and a small one, each opened anew; their mapped pages are copied behind that."""

import os

import clock
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "transform", "after": "data/large.safetensors", "needs": ["safetensors"]}

os.makedirs("data")
for name, rows in (("large", 400000), ("small", 100)):
    save_file({"values": torch.ones(rows, 16)}, f"data/{name}.safetensors")


class Shards(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        values = load_file(f"data/{'large' if index % 2 else 'small'}.safetensors")["values"]
        return values.clone()[0]


for batch in clock.steps(DataLoader(Shards(), batch_size=2)):
    train(batch, ms=5)
