"""One slot and two events: a thread fills it ahead, the loop empties it."""

import os
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
slot, full, empty = [None], threading.Event(), threading.Event()
empty.set()


def fetch() -> None:
    for step in range(50):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.02)
        empty.wait()
        empty.clear()
        slot[0] = values
        full.set()


threading.Thread(target=fetch, daemon=True).start()
for _ in range(50):
    asked = clock.now()
    full.wait()
    full.clear()
    batch = slot[0]
    empty.set()
    clock.waited(asked)
    batch.mean()
    time.sleep(0.004)
