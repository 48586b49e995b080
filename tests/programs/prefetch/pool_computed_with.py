"""The loop takes from a generator over a Pool, and computes with each item itself: that is no wait."""

from collections.abc import Iterator
from multiprocessing import Pool

import clock
import numpy
import torch
from augmenting import augment, load

KNOWN = {"steps": 120, "silent": "IO235"}


def batches(pool: Pool) -> Iterator[numpy.ndarray]:
    yield from pool.imap(load, range(120))


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with Pool(2) as pool:
        for batch in clock.steps(batches(pool)):
            features = torch.from_numpy(augment(batch)).float()
            optimizer.zero_grad()
            model(features).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
