"""The loop computes behind the lock that its samples take: more workers make nothing beside it."""

from __future__ import annotations

import multiprocessing
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOCK = multiprocessing.get_context("fork").Lock()


class Locked(Dataset):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        with LOCK:
            time.sleep(0.01)
        return torch.full((8,), float(index))


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Locked(), 2, num_workers=1, multiprocessing_context="fork"):
        with LOCK:
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.03)
