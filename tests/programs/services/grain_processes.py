"""grain with two processes, whose batches come through its own queues; no torch."""

import time

import clock
import grain.python as grain
import numpy

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


if __name__ == "__main__":
    loader = grain.load(Source(), num_epochs=1, transformations=[Slow()], batch_size=4, worker_count=2)
    weights = numpy.zeros(16)
    for batch in clock.steps(loader):
        weights += 1e-9 * batch.mean(axis=0)
        time.sleep(0.008)
