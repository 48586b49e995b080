"""A service answers so many requests a second, whoever asks: more workers get no more of them."""

from __future__ import annotations

import multiprocessing
import time

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

PERIOD_S = 0.06
NEXT = multiprocessing.get_context("fork").Value("d", 0.0)


class Limited(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        with NEXT.get_lock():
            now = time.monotonic()
            NEXT.value = answered = max(now, NEXT.value) + PERIOD_S
        time.sleep(answered - now)
        return torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Limited(), 2, num_workers=1, multiprocessing_context="fork"), compute_s=0.06)
