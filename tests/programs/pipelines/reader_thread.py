"""A thread reads files into a queue.Queue; the loop, without torch, takes one array a turn."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {
    "steps": 60,
    "cause": "transform",
    "after": "data/part1.npy",
    "stage": "read",
    "torch": False,
    "quick": True,
}

os.makedirs("data")
for part in range(3):
    numpy.save(f"data/part{part}.npy", numpy.full((100, 100), float(part)))


def read() -> None:
    for step in range(60):
        values = numpy.load(f"data/part{step % 3}.npy")
        time.sleep(0.04 if step % 3 == 1 else 0.01)
        ahead.put(values)
    ahead.put(None)


ahead: queue.Queue = queue.Queue(2)
threading.Thread(target=read, daemon=True).start()
weights = numpy.zeros(100)
for batch in clock.steps(clock.until_none(ahead.get)):
    weights += 1e-9 * batch.mean(axis=0)
    time.sleep(0.008)
