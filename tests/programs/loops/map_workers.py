"""A map-style dataset with two workers that cannot keep up."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 40, "cause": "transform", "quick": True}

loader = DataLoader(Items(160, ms=20), batch_size=4, shuffle=True, num_workers=2)
for batch in clock.steps(loader):
    train(batch)
print("trained")
