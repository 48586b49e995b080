"""grain with two processes, whose batches come through its own queues; no torch."""

import sys
import time

import clock
import grain.python as grain
import numpy
from absl import flags

KNOWN = {"steps": 60, "unknown": "allowed", "torch": False, "needs": ["grain"]}


class Source:
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return numpy.full(16, index, dtype="float32")


class Slow(grain.MapTransform):
    def map(self, item):
        time.sleep(0.015)
        return item


def train():
    loader = grain.load(Source(), num_epochs=1, transformations=[Slow()], batch_size=4, worker_count=2)
    weights = numpy.zeros(16)
    for batch in clock.steps(loader):
        weights += 1e-9 * batch.mean(axis=0)
        time.sleep(0.008)


if __name__ == "__main__":
    flags.FLAGS(sys.argv)  # grain's own are asked before its processes start
    train()  # what it leaves ends before the interpreter does
