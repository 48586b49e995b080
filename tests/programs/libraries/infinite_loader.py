"""Ultralytics' InfiniteDataLoader: one iterator, and so one set of workers, over all epochs."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 80, "cause": "transform"}


class _RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


loader = InfiniteDataLoader(Items(80, ms=20), batch_size=4, shuffle=True, num_workers=2)
for _ in range(4):
    for batch in clock.steps(loader):
        train(batch)
