"""A generator that waits for something outside, as a server, in a plain NumPy loop over iotrace.batches."""

import os
import time

import clock
import numpy

import iotrace

KNOWN = {"steps": 100, "cause": "unknown", "says": "IO218", "torch": False}

os.makedirs("data")
numpy.save("data/part.npy", numpy.zeros((64, 512)))


def ask(step: int) -> numpy.ndarray:
    time.sleep(0.02)
    return numpy.load("data/part.npy") + step


def batches():
    for step in range(100):
        yield ask(step)


weights = 0.0
for batch in clock.steps(iotrace.batches(batches())):
    weights += numpy.sort(batch, axis=1).sum()
    time.sleep(0.005)
