"""An endless iterator over a loader, and a fixed number of steps."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 70, "cause": "transform"}


def cycle(loader):
    while True:
        yield from loader


batches = clock.steps(cycle(DataLoader(Items(80, ms=3), batch_size=4, shuffle=True)))
for _ in range(70):
    train(next(batches))
