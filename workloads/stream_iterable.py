"""A regression on records that are streamed from shard files, as from an archive that cannot be indexed.

The shards are made on first use. They are dealt to the workers in turn, and every other one holds eight times
the records: with two workers, one of them runs dry early and the other streams alone to the end. Before a
worker's first batch it fills its shuffle buffer.
"""

import argparse
import bz2
import os
import random
import struct
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

RECORDS = [64, 8, 64, 8, 64, 8]  # by shard
FEATURES, BUFFER = 1 << 16, 8
HEADER = struct.Struct("<fI")  # the target, and the size in bytes of the compressed features


def make_data(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(RECORDS):
        path = directory / f"shard_{number}.bin"
        if path.exists():
            continue
        generator = np.random.default_rng(number)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("wb") as file:
            for _ in range(count):
                values = generator.normal(size=FEATURES).round(1).astype(np.float32)
                packed = bz2.compress(values.tobytes())
                file.write(HEADER.pack(values[:8].mean(), len(packed)) + packed)
        partial.rename(path)


class Stream(IterableDataset):
    """The first `records` of all shards, each shard giving in proportion to its size."""

    def __init__(self, directory: Path, records: int) -> None:
        self.paths = sorted(directory.glob("shard_*.bin"))
        self.shares = [-(-records * count // sum(RECORDS)) for count in RECORDS]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        chance, buffer = random.Random(first), []
        for number in range(first, len(self.paths), every):
            for record in islice(self.records(self.paths[number]), self.shares[number]):
                buffer.append(record)
                if len(buffer) > BUFFER:
                    yield buffer.pop(chance.randrange(len(buffer)))
        chance.shuffle(buffer)
        yield from buffer

    def records(self, path: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:  # from the start again, where more records are asked for than there are
            with path.open("rb") as file:
                while header := file.read(HEADER.size):
                    target, size = HEADER.unpack(header)
                    values = np.frombuffer(bz2.decompress(file.read(size)), np.float32)
                    yield torch.from_numpy(values.copy()), torch.tensor(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/stream"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, default=40, help="about so many: a worker's last batch is smaller"
    )
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    make_data(options.data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    context = options.start_method if options.workers else None
    loader = DataLoader(
        Stream(options.data, options.steps * options.batch_size),
        options.batch_size,
        num_workers=options.workers,
        multiprocessing_context=context,
    )
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    started, steps = time.perf_counter(), 0
    for values, target in loader:
        loss = nn.functional.mse_loss(model(values.to(device))[:, 0], target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 10 == 0:
            print(f"step {steps} loss {loss.item():.4f}")
    print(f"trained {steps} steps in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
