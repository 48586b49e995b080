"""SPDL: a pipeline of threads instead of worker processes."""

import time

import clock
import torch
from spdl.dataloader import DataLoader
from toy import busy, train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["spdl"]}


def make(number: int) -> torch.Tensor:
    time.sleep(0.016)
    return torch.full((16,), float(number))


loader = DataLoader(
    range(240), preprocessor=make, batch_size=4, aggregator=torch.stack, num_threads=2, buffer_size=2
)
for batch in clock.steps(loader):
    train(batch, 6, busy)
