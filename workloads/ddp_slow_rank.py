"""Two ranks train one network with DDP over gloo; each reads its own shard, and one is slow to read.

    torchrun --nproc-per-node 2 workloads/ddp_slow_rank.py

The shards are made on first use. Rank 1's was compressed, 64 samples to a chunk, and its samples are read in
random order: each one decompresses 64. Rank 0 has its data at once, and waits for rank 1 in the all-reduce
of each backward pass.
"""

import argparse
import os
import time
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, CHANNELS, POINTS, CLASSES = 512, 16, 512, 4


def make_data(directory: Path, rank: int) -> None:
    path = directory / f"shard_{rank}.h5"
    if path.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(rank)
    label = generator.integers(0, CLASSES, SAMPLES)
    time_axis = np.linspace(0, 2 * np.pi, POINTS, dtype=np.float32)
    signal = np.sin((label[:, None, None] + 1) * time_axis).repeat(CHANNELS, 1)
    signal = (signal + generator.normal(size=signal.shape)).astype(np.float32)
    chunk = (64 if rank % 2 else 1, CHANNELS, POINTS)
    compression = {"compression": "gzip", "compression_opts": 6} if rank % 2 else {}
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with h5py.File(partial, "w") as file:
        file.create_dataset("signal", data=signal, chunks=chunk, **compression)
        file.create_dataset("label", data=label)
    partial.rename(path)


class Shard(Dataset):
    """Samples of one shard, in random order."""

    def __init__(self, path: Path, samples: int) -> None:
        self.path = path
        self.order = np.random.default_rng(0).integers(0, SAMPLES, samples)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        index = int(self.order[number])
        with h5py.File(self.path, "r") as file:
            return torch.from_numpy(file["signal"][index]), int(file["label"][index])


def network(width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(CHANNELS, width, 9, stride=4),
        nn.ReLU(),
        nn.Conv1d(width, width, 9, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(width, CLASSES),
    )


def say(text: str) -> None:
    """Print a line whole: the ranks share one pipe, and print() may write its newline apart."""
    os.write(1, f"{text}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/shards"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    make_data(options.data, rank)
    dist.barrier()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    context = options.start_method if options.workers else None
    loader = DataLoader(
        Shard(options.data / f"shard_{rank}.h5", options.steps * options.batch_size),
        options.batch_size,
        num_workers=options.workers,
        multiprocessing_context=context,
    )
    model = nn.parallel.DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    started, steps = time.perf_counter(), 0
    for signal, label in loader:
        loss = nn.functional.cross_entropy(model(signal.to(device)), label.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if rank == 0 and steps % 10 == 0:
            say(f"step {steps} loss {loss.item():.4f}")
    say(f"rank {rank} trained {steps} steps in {time.perf_counter() - started:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
