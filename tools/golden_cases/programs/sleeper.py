"""A small training for a sweep: a sample takes 4 ms, a step 3 ms. python sleeper.py --workers N"""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(__file__, "rb") as file:
            file.read()
        time.sleep(0.004)
        return torch.ones(8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    for batch in DataLoader(Samples(), 4, num_workers=parser.parse_args().workers):
        model(batch).sum().backward()
        time.sleep(0.003)


if __name__ == "__main__":
    main()
