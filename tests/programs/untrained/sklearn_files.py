"""scikit-learn's partial_fit on files, without torch: the source is given to iotrace.batches."""

import os
import time

import clock
import numpy
from sklearn.linear_model import SGDRegressor

import iotrace

KNOWN = {"steps": 60, "cause": "decode", "file": "data/part1.npz", "torch": False, "needs": ["sklearn"]}

os.makedirs("data")
draw = numpy.random.default_rng(0)
for part, rows in enumerate((2000, 60000, 2000)):
    numpy.savez_compressed(f"data/part{part}.npz", values=draw.normal(size=(rows, 16)).astype("float32"))


def batches():
    for step in range(60):
        with numpy.load(f"data/part{step % 3}.npz") as part:
            yield part["values"]


model = SGDRegressor(random_state=0)
for values in clock.steps(iotrace.batches(batches())):
    model.partial_fit(values[:100], values[:100, 0])
    time.sleep(0.008)
