"""A curriculum: loaders of growing batches, chained, each by a sampler and iterated once."""

import itertools

import clock
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform"}


def stage(size: int) -> DataLoader:
    items = Items(20 * size, ms=4)
    return DataLoader(items, batch_sampler=BatchSampler(SequentialSampler(items), size, drop_last=False))


for batch in clock.steps(itertools.chain.from_iterable(stage(size) for size in (2, 4, 8))):
    train(batch)
