"""A queue of one item before a loop whose every eighth step is long: its limit holds the loop up."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 64, "says": "IO234", "silent": "IO230", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
ahead = queue.Queue(1)


def feed() -> None:
    for step in range(64):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.008)
        ahead.put(values)
    ahead.put(None)


threading.Thread(target=feed, daemon=True).start()
for step, batch in enumerate(clock.steps(clock.until_none(ahead.get))):
    batch.mean()
    time.sleep(0.15 if step % 8 == 7 else 0.001)
