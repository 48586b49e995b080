"""Gradient accumulation: a backward for each batch, the optimizer after each fourth."""

import clock
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 80, "cause": "transform"}

optimizer = make_optimizer()
for number, batch in enumerate(clock.steps(DataLoader(Items(320, ms=3), batch_size=4)), 1):
    loss = model(batch).mean() / 4
    compute(8)
    loss.backward()
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
