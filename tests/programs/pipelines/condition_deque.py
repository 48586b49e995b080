"""A buffer by hand: a deque behind a condition, filled by two threads, emptied by the loop."""

import os
import threading
import time
from collections import deque

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
ring, changed = deque(), threading.Condition()


def fetch() -> None:
    for step in range(25):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.03)
        with changed:
            while len(ring) >= 4:
                changed.wait()
            ring.append(values)
            changed.notify_all()


def take() -> numpy.ndarray:
    with changed:
        while not ring:
            changed.wait()
        values = ring.popleft()
        changed.notify_all()
    return values


for _ in range(2):
    threading.Thread(target=fetch, daemon=True).start()
for _ in range(50):
    asked = clock.now()
    batch = take()
    clock.waited(asked)
    batch.mean()
    time.sleep(0.004)
