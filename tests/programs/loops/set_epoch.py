"""A sampler with set_epoch, and items that take longer from epoch to epoch."""

import clock
from torch.utils.data import DataLoader, DistributedSampler
from toy import Items, train

KNOWN = {"steps": 80, "cause": "transform", "loaders": 1}

items = Items(80, ms=1)
sampler = DistributedSampler(items, num_replicas=1, rank=0)
loader = DataLoader(items, batch_size=4, sampler=sampler)
for epoch in range(4):
    sampler.set_epoch(epoch)
    items.ms = 1 + 2 * epoch
    for batch in clock.steps(loader):
        train(batch)
