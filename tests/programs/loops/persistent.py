"""Persistent workers over four epochs."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 80, "cause": "transform"}

loader = DataLoader(Items(80, ms=20), batch_size=4, num_workers=2, persistent_workers=True)
for epoch in range(4):
    for batch in clock.steps(loader):
        train(batch)
    print("epoch", epoch)
