"""Three folds at once: a model, an optimizer and a loader each, with 0, 1 and 2 workers, in turn."""

import clock
import torch
from torch.utils.data import DataLoader, Subset
from toy import Items, compute

KNOWN = {"steps": 40, "cause": "transform", "loaders": 3}

items = Items(480, ms=7)
folds = [
    DataLoader(Subset(items, range(fold, 480, 3)), batch_size=4, shuffle=True, num_workers=fold)
    for fold in range(3)
]
models = [torch.nn.Linear(16, 1) for _ in folds]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
for batches in zip(*(clock.steps(loader, step=not fold) for fold, loader in enumerate(folds)), strict=True):
    for model, optimizer, batch in zip(models, optimizers, batches, strict=True):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        compute(4)
        loss.backward()
        optimizer.step()
