"""Three losses of one batch, each with a backward of its own."""

import clock
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 60, "cause": "transform"}

optimizer = make_optimizer()
for batch in clock.steps(DataLoader(Items(240, ms=3), batch_size=4)):
    for weight in (1.0, 0.5, 0.1):
        loss = weight * model(batch).mean()
        compute(3)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
