"""What the programs share: a training loop whose step takes a known time, beside a loader."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader


def train(loader: DataLoader, epochs: int = 1, compute_s: float = 0.01) -> None:
    """Train a small model on each batch; a step takes `compute_s` besides its wait."""
    torch.set_num_threads(1)
    model, steps, started = nn.Linear(4, 1), 0, time.perf_counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in loader:
            end = time.perf_counter() + compute_s
            loss = model(batch.float().reshape(len(batch), -1)[:, :4]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, end - time.perf_counter()))
            steps += 1
    print(f"trained {steps} steps in {time.perf_counter() - started:.1f} s")
