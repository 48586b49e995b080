"""A DataLoader made anew each epoch; the later ones are slower (a curriculum)."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 80, "cause": "transform", "loaders": 1, "quick": True}

for epoch in range(4):
    for batch in clock.steps(DataLoader(Items(80, ms=1 + epoch), batch_size=4)):
        train(batch)
