"""A dataset that iterates over a loader of its own: the outer one is the loop's."""

import clock
from torch.utils.data import DataLoader, IterableDataset
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform"}


class Mixed(IterableDataset):
    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __iter__(self):
        for pair in self.loader:
            yield from pair


inner = DataLoader(Items(240, ms=3), batch_size=2)
for batch in clock.steps(DataLoader(Mixed(inner), batch_size=4)):
    train(batch)
