"""An epoch is the first twenty batches of a loader that has more."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 80, "cause": "transform"}

loader = DataLoader(Items(4000, ms=20), batch_size=4, shuffle=True, num_workers=2)
for _ in range(4):
    for number, batch in enumerate(clock.steps(loader), 1):
        train(batch)
        if number == 20:
            break
