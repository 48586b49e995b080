"""Regions in program and workers, persistent workers over two epochs, a validation loader, batches and step.

python regions.py [START_METHOD]
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import iotrace


class Samples(Dataset):
    def __len__(self) -> int:
        return 24

    @iotrace.region("sample")
    def __getitem__(self, index: int) -> torch.Tensor:
        with iotrace.region("load"):
            time.sleep(0.002)
        with iotrace.region("augment"):
            return torch.full((16,), float(index)).sin()


class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.ones(16) for _ in range(6))


def numbers():
    for number in range(12):
        time.sleep(0.003)
        yield number


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    training = DataLoader(
        Samples(),
        2,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=sys.argv[1] if len(sys.argv) > 1 else None,
    )
    validation = DataLoader(Stream(), 2)
    for _ in range(2):
        for batch in training:
            with iotrace.region("train"):
                model(batch).sum().backward()
        with torch.no_grad():
            for batch in validation:
                model(batch)
    for _ in iotrace.batches(numbers()):
        iotrace.step()
        time.sleep(0.001)


if __name__ == "__main__":
    main()
