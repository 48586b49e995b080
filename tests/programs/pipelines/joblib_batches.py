"""joblib puts several tasks into a batch; the loop takes one result after the other, each a step."""

import os
import time

import clock
import numpy
from joblib import Parallel, delayed

KNOWN = {"steps": 60, "cause": "transform", "torch": False, "needs": ["joblib"]}


def load(step: int) -> numpy.ndarray:
    values = numpy.load("data/one.npy") + step
    time.sleep(0.02)
    return values


os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
calls = Parallel(n_jobs=2, return_as="generator", backend="threading", batch_size=5, pre_dispatch=40)
for batch in clock.steps(calls(delayed(load)(step) for step in range(60))):
    batch.mean()
    time.sleep(0.004)
