"""Inference by torch.inference_mode with two workers and an iterable dataset."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Stream, compute, model

KNOWN = {"steps": 40, "cause": "transform"}

with torch.inference_mode():
    for batch in clock.steps(DataLoader(Stream(160, ms=20), batch_size=4, num_workers=2)):
        model(batch)
        compute(8)
