"""itertools.tee: one branch looks a batch ahead of the other, as for a loss on pairs of neighbours."""

import itertools

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 59, "cause": "transform"}

batches, ahead = itertools.tee(DataLoader(Items(240, ms=4), batch_size=4))
next(ahead)
for batch, _following in clock.steps(zip(batches, ahead, strict=False)):
    train(batch)
