"""Inference under no_grad: every batch is a step."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model

KNOWN = {"steps": 60, "cause": "transform", "quick": True}

model.eval()
total = 0.0
with torch.no_grad():
    for batch in clock.steps(DataLoader(Items(240, ms=3), batch_size=4)):
        total += model(batch).shape[0]
        compute(8)
print("predicted", total)
