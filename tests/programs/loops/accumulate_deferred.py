"""Losses of four batches are summed, and one backward follows: one step."""

import clock
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 30, "cause": "transform"}

optimizer = make_optimizer()
total = 0
for number, batch in enumerate(clock.steps(DataLoader(Items(480, ms=2), batch_size=4), every=4), 1):
    total = total + model(batch).mean()
    compute(6)
    if number % 4 == 0:
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = 0
