"""A program with a torch.profiler and marks for dftracer of its own; its last batch raises where asked to."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 39 and len(sys.argv) > 1:
            raise ValueError("a bad sample")
        return torch.ones(64) * index


def main() -> None:
    torch.set_num_threads(1)
    network = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    plan = schedule(wait=4, warmup=1, active=4, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        on_trace_ready=lambda done: done.export_chrome_trace("own.json.gz"),
    ) as profiler:
        for batch in DataLoader(Samples(), 2, num_workers=1):
            network(batch).sum().backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    main()
