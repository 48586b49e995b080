"""A whole validation, of three batches, after each step."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model, train

KNOWN = {"steps": 40, "cause": "transform"}

validation = DataLoader(Items(12, ms=2), batch_size=4)
for batch in clock.steps(DataLoader(Items(160, ms=3), batch_size=4)):
    train(batch)
    with clock.evaluation(), torch.no_grad():
        for other in validation:
            model(other)
            compute(1)
