"""Four threads read and sleep often; another one computes in Python, and has the lock whenever they wake."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 48, "cause": "transform", "after": "data/one.npy", "says": "IO232", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
over = threading.Event()


def count() -> None:
    while not over.is_set():
        sum(range(2000))


def fetch() -> None:
    for _ in range(12):
        values = numpy.load("data/one.npy")
        for _ in range(20):
            time.sleep(0.001)
        ahead.put(values)


ahead: queue.Queue = queue.Queue(4)
threading.Thread(target=count, daemon=True).start()
for _ in range(4):
    threading.Thread(target=fetch, daemon=True).start()
for _ in range(48):
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    batch.mean()
    time.sleep(0.004)
over.set()
