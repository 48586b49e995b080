"""The same pool, and a loop that is slower than it: nothing is waited for."""

import time
from concurrent.futures import ThreadPoolExecutor

import clock
import numpy

KNOWN = {"steps": 60, "torch": False}


def load(step: int) -> numpy.ndarray:
    time.sleep(0.01)
    return numpy.full(16, float(step))


with ThreadPoolExecutor(2) as pool:
    for batch in clock.steps(pool.map(load, range(60))):
        time.sleep(0.03 + 1e-9 * batch.mean())
