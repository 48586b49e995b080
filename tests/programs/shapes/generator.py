"""Batches pass through a generator that drops some and moves the rest."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform"}


def usable(loader):
    for number, batch in enumerate(loader):
        if number % 3 == 2:
            continue
        yield batch.float()


for batch in clock.steps(usable(DataLoader(Items(360, ms=2), batch_size=4))):
    train(batch)
