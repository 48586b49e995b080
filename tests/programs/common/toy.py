"""What the programs train: a tiny model, items that take a known time, compute of a known length."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)


class Items(Dataset):
    """`count` items; each takes `ms` to make."""

    def __init__(self, count: int, ms: float) -> None:
        self.count, self.ms = count, ms

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count:
            raise IndexError(index)
        time.sleep(self.ms / 1e3)
        return torch.full((16,), float(index))


class Stream(IterableDataset):
    """The same items one after another, shared among the workers."""

    def __init__(self, count: int, ms: float) -> None:
        self.count, self.ms = count, ms

    def __iter__(self):
        worker = get_worker_info()
        first, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, self.count, apart):
            time.sleep(self.ms / 1e3)
            yield torch.full((16,), float(index))


def make_optimizer() -> torch.optim.Optimizer:
    """Make an optimizer of the model."""
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def compute(ms: float) -> None:
    """Take the time of a forward pass on an accelerator: the host sleeps."""
    time.sleep(ms / 1e3)


def busy(ms: float) -> None:
    """Use `ms` of this thread's CPU time without the interpreter's lock: a forward pass on the CPU."""
    weights = torch.ones(192, 192)
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        torch.mm(weights, weights)


def train(batch: torch.Tensor, ms: float = 8, work=compute) -> None:
    """Make one step of training."""
    loss = model(batch).mean()
    work(ms)
    loss.backward()
    with torch.no_grad():  # by hand: importing torch.optim's compiler takes longer than most of the loops
        for parameter in model.parameters():
            parameter -= 1e-6 * parameter.grad
            parameter.grad = None
