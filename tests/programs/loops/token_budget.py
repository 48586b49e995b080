"""A step takes as many batches as its budget of tokens needs, 2 to 5, and has one backward pass."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 40, "cause": "transform"}

batches = iter(DataLoader(Items(4 * 200, ms=2), batch_size=4))
for step in range(40):
    taken = []
    while sum(map(len, taken)) < 8 + 4 * (step % 4):
        taken.append(clock.next_(batches, step=not taken))
    train(torch.cat(taken), 8)
