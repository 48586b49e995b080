"""A prefetcher that makes a queue and a thread for each epoch: it is one stage, and slow."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 60, "cause": "transform", "after": "data/a.npy", "torch": False}

os.makedirs("data")
numpy.save("data/a.npy", numpy.ones((64, 64)))


class Prefetcher:
    def __init__(self, items: int) -> None:
        self.queue: queue.Queue = queue.Queue(4)
        threading.Thread(target=self.fill, args=(items,), daemon=True).start()

    def fill(self, items: int) -> None:
        for _ in range(items):
            values = numpy.load("data/a.npy")
            time.sleep(0.03)
            self.queue.put(values)
        self.queue.put(None)


for _ in range(3):
    for batch in clock.steps(clock.until_none(Prefetcher(20).queue.get)):
        batch.mean()
        time.sleep(0.01)
