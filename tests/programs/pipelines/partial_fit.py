"""scikit-learn learns batch by batch what a generator reads: no loader, no pool."""

import os
import time

import clock
import numpy
from sklearn.linear_model import SGDClassifier

KNOWN = {"steps": 40, "file": "data/part.npy", "unknown": "allowed", "torch": False, "needs": ["sklearn"]}

os.makedirs("data")
numpy.save("data/part.npy", numpy.random.default_rng(0).normal(size=(2000, 20)))


def batches():
    for step in range(40):
        values = numpy.load("data/part.npy") + step
        time.sleep(0.02)
        yield values, numpy.arange(2000) % 2


model = SGDClassifier()
for values, labels in clock.steps(batches()):
    model.partial_fit(values, labels, classes=[0, 1])
