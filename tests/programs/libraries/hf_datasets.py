"""Hugging Face datasets: map-style, from a memory-mapped Arrow file, and a slow collate function."""

import time

import clock
import torch
from datasets import Dataset, disable_progress_bars, load_from_disk
from torch.utils.data import DataLoader
from toy import train

KNOWN = {"steps": 60, "cause": "collate", "needs": ["datasets"]}

disable_progress_bars()
Dataset.from_dict({"x": [[float(row)] * 16 for row in range(240)]}).save_to_disk("data")


def collate(rows):
    time.sleep(0.012)
    return torch.stack([row["x"] for row in rows])


rows = load_from_disk("data").with_format("torch")
for batch in clock.steps(DataLoader(rows, batch_size=4, collate_fn=collate)):
    train(batch)
