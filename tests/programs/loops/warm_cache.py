"""The first epoch only fills a cache; the next three train on what it kept."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 60}


class Cached(Items):
    def __init__(self, count: int, ms: float) -> None:
        super().__init__(count, ms)
        self.kept = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


loader = DataLoader(Cached(80, ms=3), batch_size=4)
for _ in loader:
    pass
for _epoch in range(3):
    for batch in clock.steps(loader):
        train(batch, 5)
