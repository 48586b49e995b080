"""A training without end, to be killed. It makes the file that is its argument at its 20th step."""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        Path(__file__).read_bytes()
        time.sleep(0.01)
        return torch.ones(2)


def main() -> None:
    torch.set_num_threads(1)
    weight = torch.ones(2, requires_grad=True)
    for number, batch in enumerate(DataLoader(Slow(), 2, num_workers=2)):
        (batch * weight).sum().backward()
        if number == 20:
            Path(sys.argv[1]).touch()


if __name__ == "__main__":
    main()
