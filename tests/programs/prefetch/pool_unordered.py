"""NumPy alone: a ThreadPool reads files, and the loop takes what comes first; then futures as_completed."""

import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.pool import ThreadPool

import clock
import numpy

KNOWN = {"steps": 60, "cause": "transform", "torch": False}

os.makedirs("data")
for part in range(3):
    numpy.save(f"data/part{part}.npy", numpy.full((100, 100), float(part)))


def load(step: int) -> numpy.ndarray:
    values = numpy.load(f"data/part{step % 3}.npy")
    time.sleep(0.09 if step % 3 == 1 else 0.02)
    return values


def use(batch: numpy.ndarray) -> None:
    time.sleep(0.01 + 1e-9 * batch.mean())


with ThreadPool(2) as pool:
    for batch in clock.steps(pool.imap_unordered(load, range(30))):
        use(batch)
with ThreadPoolExecutor(2) as pool:
    futures = as_completed([pool.submit(load, step) for step in range(30)])
    for future in clock.steps(futures):
        use(future.result())
