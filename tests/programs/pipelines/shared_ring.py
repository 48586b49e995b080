"""A process fills a place in shared memory, two semaphores of multiprocessing guard it: no item is seen."""

import multiprocessing
import os
import time

import clock
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))


def fill(place, free, full) -> None:
    shared = numpy.frombuffer(place, numpy.float64).reshape(64, 64)
    for step in range(40):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.015)
        free.acquire()
        shared[:] = values
        full.release()


forked = multiprocessing.get_context("fork")
place = forked.RawArray("d", 64 * 64)
free, full = forked.Semaphore(1), forked.Semaphore(0)
forked.Process(target=fill, args=(place, free, full)).start()
for _ in range(40):
    full.acquire()
    batch = numpy.frombuffer(place, numpy.float64).copy()
    free.release()
    clock.begin()
    batch.mean()
    time.sleep(0.002)
