"""scikit-learn learns batch by batch what a generator reads: no loader, no pool."""

import os

import clock
import numpy
from sklearn.linear_model import SGDClassifier

KNOWN = {"steps": 40, "cause": "transform", "after": "data/part.npy", "torch": False, "needs": ["sklearn"]}

os.makedirs("data")
numpy.save("data/part.npy", numpy.random.default_rng(0).normal(size=(2000, 20)))


def batches():
    for step in range(40):
        values = numpy.load("data/part.npy") + step
        for _ in range(40):
            values = numpy.sort(values, axis=0)[::-1]
        yield values, numpy.arange(2000) % 2


model = SGDClassifier()
for values, labels in clock.steps(batches()):
    model.partial_fit(values, labels, classes=[0, 1])
