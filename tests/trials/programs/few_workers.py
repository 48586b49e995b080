"""Samples sleep, as those that come from a slow store, and one worker makes them."""

from __future__ import annotations

import time

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.025)
        return torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Slow(), 2, num_workers=1), compute_s=0.02)
