"""NumPy alone, with iotrace.batches and no iotrace.step: every batch is a step."""

import time

import clock
import numpy

import iotrace

KNOWN = {"steps": 60, "torch": False}


def batches():
    for step in range(60):
        time.sleep(0.01)
        yield numpy.full((4, 16), float(step))


weights = numpy.zeros(16)
for batch in clock.steps(iotrace.batches(batches())):
    weights += 1e-9 * batch.mean(axis=0)
    time.sleep(0.01)
