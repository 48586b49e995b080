"""An exception in the middle of the loop."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 40, "cause": "transform", "exit": 1, "quick": True}

for number, batch in enumerate(clock.steps(DataLoader(Items(400, ms=3), batch_size=4)), 1):
    train(batch)
    if number == 40:
        raise RuntimeError("loss is NaN")
