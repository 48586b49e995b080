"""pickle.load of records that take long to rebuild, beside light ones."""

import os
import pickle

import clock
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/heavy.pkl"}

os.makedirs("data")
for name, count in (("heavy", 60000), ("light", 16)):
    with open(f"data/{name}.pkl", "wb") as file:
        pickle.dump([{"value": float(number)} for number in range(count)], file)


class Records(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        with open(f"data/{'heavy' if index % 2 else 'light'}.pkl", "rb") as file:
            records = pickle.load(file)
        return torch.tensor([record["value"] for record in records[:16]])


for batch in clock.steps(DataLoader(Records(), batch_size=2)):
    train(batch, ms=5)
