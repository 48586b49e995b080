"""A slow thread feeds the loop by a queue; another thread reads another file all the time, for nobody."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/wanted.npy", "stage": "feed", "torch": False}

os.makedirs("data")
for name in ("wanted", "unrelated"):
    numpy.save(f"data/{name}.npy", numpy.ones((200, 200)))


def feed() -> None:
    for _ in range(50):
        values = numpy.load("data/wanted.npy")
        time.sleep(0.02)
        ahead.put(values)
    ahead.put(None)


def stand_by() -> None:
    while not over.wait(0.001):
        numpy.load("data/unrelated.npy")


over = threading.Event()
ahead: queue.Queue = queue.Queue(1)
threading.Thread(target=stand_by, daemon=True).start()
threading.Thread(target=feed, daemon=True).start()
for batch in clock.steps(clock.until_none(ahead.get)):
    batch.mean()
    time.sleep(0.005)
over.set()
