"""Training and validation by the same two functions, as many examples have them."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2}


def loader_of(count: int, training: bool) -> DataLoader:
    return DataLoader(Items(count, ms=3), batch_size=4, shuffle=training)


def epoch_of(loader: DataLoader, training: bool) -> None:
    with torch.set_grad_enabled(training):
        for batch in clock.steps(loader) if training else loader:
            if training:
                train(batch)
            else:
                model(batch)
                compute(2)


for _ in range(3):
    epoch_of(loader_of(80, training=True), training=True)
    with clock.evaluation():
        epoch_of(loader_of(40, training=False), training=False)
