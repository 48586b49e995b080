"""A generator takes from a Pool and augments, in the loop's own thread: the pool is ahead, the loop waits."""

from collections.abc import Iterator
from multiprocessing import Pool

import clock
import torch
from augmenting import augment, load

KNOWN = {"steps": 120, "cause": "transform"}


def batches(pool: Pool) -> Iterator[torch.Tensor]:
    for batch in pool.imap(load, range(120)):
        yield torch.from_numpy(augment(batch)).float()


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with Pool(2) as pool:
        for batch in clock.steps(batches(pool)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
