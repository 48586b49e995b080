"""Hugging Face datasets without a DataLoader: rows are mapped while the loop iterates; four are a batch."""

import time

import clock
import torch
from datasets import Dataset, disable_progress_bars
from toy import train

KNOWN = {"steps": 60, "cause": ["transform", "unknown"], "needs": ["datasets"]}

disable_progress_bars()


def slow(row: dict) -> dict:
    time.sleep(0.005)
    return {"x": [float(row["number"])] * 16}


rows = Dataset.from_dict({"number": list(range(480))}).to_iterable_dataset()
rows = rows.filter(lambda row: row["number"] % 2 == 0).map(slow)
batch = []
iterator = iter(rows)
for number in range(240):
    row = clock.next_(iterator, step=number % 4 == 0)
    batch.append(torch.tensor(row["x"]))
    if len(batch) == 4:
        train(torch.stack(batch))
        batch = []
