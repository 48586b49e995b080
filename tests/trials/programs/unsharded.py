"""An IterableDataset whose workers do not share its samples: with other workers an epoch is another one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from loop import train
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(120):
            time.sleep(0.01)
            yield torch.full((8,), float(index))


if __name__ == "__main__":
    train(DataLoader(Stream(), 2, num_workers=1))
