"""A loop that reads a file for each batch, without torch: `python small_loop.py STEPS`"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

import iotrace


def batches(steps: int) -> Iterator[int]:
    """Yield the sum of the file, read anew each time."""
    np.save("volume.npy", np.arange(50_000))
    for _ in range(steps):
        yield int(np.load("volume.npy").sum())


if __name__ == "__main__":
    for batch in iotrace.batches(batches(int(sys.argv[1]))):
        np.sort(np.arange(100_000)[::-1] + batch)
