"""Samples wait for one lock, so that more workers make them no faster."""

from __future__ import annotations

import multiprocessing
import time

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

LOCK = multiprocessing.get_context("fork").Lock()


class Locked(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        with LOCK:
            time.sleep(0.015)
        return torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Locked(), 2, num_workers=1, multiprocessing_context="fork"))
