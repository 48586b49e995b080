"""The loop reads; a pool computes on what it is handed, and the loop takes the results: no wait for data."""

import time
from concurrent.futures import ThreadPoolExecutor

import clock
import numpy

KNOWN = {"steps": 60, "unknown": "always", "torch": False}


def compute(batch: numpy.ndarray) -> float:
    time.sleep(0.02)
    return float(batch.mean())


with ThreadPoolExecutor(2) as pool:
    pending = None
    for step in clock.steps(range(60)):
        time.sleep(0.005)
        batch = numpy.full((256, 256), float(step))
        if pending is not None:
            pending.result()
        pending = pool.submit(compute, batch)
