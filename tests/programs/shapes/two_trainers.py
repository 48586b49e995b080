"""Two threads train, a model and a loader each; the one that makes more steps is the loop that is told."""

import threading

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2}


def fit(count: int, step) -> None:
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in step(DataLoader(Items(count, ms=5), batch_size=4)):
        optimizer.zero_grad()
        loss = model(batch).mean()
        compute(8)
        loss.backward()
        optimizer.step()


other = threading.Thread(target=fit, args=(120, iter))
other.start()
fit(240, clock.steps)
other.join()
