"""Tiny samples out of memory, by workers that are started anew for each of many short epochs."""

from __future__ import annotations

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Short(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Short(), 4, num_workers=2), epochs=40, compute_s=0.0)
