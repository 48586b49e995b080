"""A batch with a loss that is not finite is skipped: no backward pass follows it."""

import clock
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 60, "cause": "transform"}

optimizer, trained = make_optimizer(), True
for number, batch in enumerate(clock.steps(DataLoader(Items(4 * 75, ms=4), batch_size=4), step=False)):
    if trained:
        clock.begin()
    loss = model(batch).mean()
    compute(6)
    trained = number % 5 != 3
    if not trained:
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
