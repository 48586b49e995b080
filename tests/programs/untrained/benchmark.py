"""A benchmark of a loader: no model, the loop is nothing but waiting."""

import clock
from torch.utils.data import DataLoader
from toy import Items

KNOWN = {"steps": 120, "cause": "transform"}

loader = DataLoader(Items(240, ms=3), batch_size=4)
for _epoch in range(2):
    for _ in clock.steps(loader):
        pass
print("loaded")
