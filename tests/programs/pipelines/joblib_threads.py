"""joblib makes the batches in threading, and hands them on by a generator."""

import os
import time

import clock
import joblib
import numpy

KNOWN = {"steps": 48, "cause": "transform", "after": "data/one.npy", "torch": False, "needs": ["joblib"]}


def load(step: int) -> numpy.ndarray:
    values = numpy.load("data/one.npy") + step
    time.sleep(0.03)
    return values


if __name__ == "__main__":
    os.makedirs("data", exist_ok=True)
    numpy.save("data/one.npy", numpy.ones((64, 64)))
    parallel = joblib.Parallel(n_jobs=2, backend="threading", return_as="generator", batch_size=1)
    for batch in clock.steps(parallel(joblib.delayed(load)(step) for step in range(48))):
        batch.mean()
        time.sleep(0.004)
