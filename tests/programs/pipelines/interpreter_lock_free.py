"""Four threads read and sleep; another one packs data, in C, without the interpreter's lock."""

import os
import queue
import threading
import time
import zlib

import clock
import numpy

KNOWN = {"steps": 48, "cause": "transform", "after": "data/one.npy", "silent": "IO232", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
over, data = threading.Event(), bytes(range(256)) * 20000


def pack() -> None:
    while not over.is_set():
        zlib.compress(data, 9)


def fetch() -> None:
    for _ in range(12):
        values = numpy.load("data/one.npy")
        time.sleep(0.15)
        ahead.put(values)


ahead: queue.Queue = queue.Queue(4)
threading.Thread(target=pack, daemon=True).start()
for _ in range(4):
    threading.Thread(target=fetch, daemon=True).start()
for _ in range(48):
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    batch.mean()
    time.sleep(0.004)
over.set()
