"""Each step draws one of two loaders: a mixture of data sets, the larger one slow."""

import random

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform"}

random.seed(0)
sources = [iter(DataLoader(Items(400, ms=ms), batch_size=4)) for ms in (3, 1)]
for _ in range(60):
    train(clock.next_(random.choices(sources, weights=(3, 1))[0]))
