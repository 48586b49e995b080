"""A subclass of DataLoader gives its batches from a generator, which moves and normalises them."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 1}


class Normalised(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield (batch - batch.mean()) / (batch.std() + 1)


loader = Normalised(Items(120, ms=4), batch_size=4)
for _epoch in range(2):
    for batch in clock.steps(loader):
        train(batch)
