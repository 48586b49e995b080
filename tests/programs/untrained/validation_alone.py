"""A program that only evaluates: the model's mode is eval, nothing trains."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model

KNOWN = {"steps": 60, "cause": "transform"}


@torch.no_grad()
def evaluate(loader: DataLoader) -> int:
    model.eval()
    seen = 0
    for batch in clock.steps(loader):
        seen += int((model(batch) > -100).sum())
        compute(6)
    return seen


print("accuracy", evaluate(DataLoader(Items(240, ms=3), batch_size=4)) / 240)
