"""A thread trains a small model beside a loop that computes: nothing tells what the loop waits for."""

import threading
import time

import clock
import numpy
from sklearn.linear_model import SGDClassifier

KNOWN = {"steps": 40, "unknown": "always", "torch": False, "needs": ["sklearn"]}


def learn() -> None:
    model = SGDClassifier()
    for _ in range(40):
        values = numpy.random.default_rng(0).normal(size=(200, 20))
        model.partial_fit(values, numpy.arange(200) % 2, classes=[0, 1])
        time.sleep(0.01)


threading.Thread(target=learn).start()
for _ in clock.steps(range(40)):
    time.sleep(0.02)
