"""A program that records itself by iotrace.profile, into the session that is its argument."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import iotrace


def main() -> None:
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.ones(128, 16)), 4, num_workers=1)
    model = torch.nn.Linear(16, 1)
    with iotrace.profile(output=sys.argv[1], report=False):
        for (batch,) in loader:
            model(batch).mean().backward()


if __name__ == "__main__":
    main()
