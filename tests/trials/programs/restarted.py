"""Workers are ended and started anew for each of many short epochs."""

from __future__ import annotations

import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Short(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Short(), 2, num_workers=2), epochs=12, compute_s=0.005)
