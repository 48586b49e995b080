"""Validation after every tenth step."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model, train

KNOWN = {"steps": 60, "cause": "transform", "quick": True}

training = DataLoader(Items(240, ms=3), batch_size=4)
validation = DataLoader(Items(24, ms=3), batch_size=4)
for number, batch in enumerate(clock.steps(training), 1):
    train(batch)
    if number % 10 == 0:
        model.eval()
        with clock.evaluation(), torch.no_grad():
            for other in validation:
                model(other)
                compute(2)
        model.train()
