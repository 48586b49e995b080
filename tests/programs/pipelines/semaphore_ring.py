"""A ring of arrays behind two semaphores: a thread fills a place, the loop copies it out."""

import os
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
ring, free, full = numpy.zeros((4, 64, 64)), threading.Semaphore(4), threading.Semaphore(0)


def fill() -> None:
    for step in range(50):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.02)
        free.acquire()
        ring[step % 4] = values
        full.release()


threading.Thread(target=fill, daemon=True).start()
for step in range(50):
    asked = clock.now()
    full.acquire()
    batch = ring[step % 4].copy()
    free.release()
    clock.waited(asked)
    batch.mean()
    time.sleep(0.004)
