"""batch_size=None: the dataset itself makes batches."""

import time

import clock
import torch
from torch.utils.data import DataLoader, IterableDataset
from toy import train

KNOWN = {"steps": 60, "cause": "transform"}


class Batches(IterableDataset):
    def __iter__(self):
        for index in range(60):
            time.sleep(0.012)
            yield torch.full((4, 16), float(index))


for batch in clock.steps(DataLoader(Batches(), batch_size=None)):
    train(batch)
