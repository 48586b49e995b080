"""A spawned process reads and sends arrays by one end of a pipe; the loop receives them."""

import multiprocessing
import os
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "stage": "fetch", "torch": False}


def fetch(there) -> None:
    for step in range(50):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.02)
        there.send(values)
    there.send(None)


if __name__ == "__main__":
    os.makedirs("data")
    numpy.save("data/one.npy", numpy.ones((100, 100)))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=fetch, args=(there,), daemon=True)
    process.start()
    for batch in clock.steps(clock.until_none(here.recv)):
        batch.mean()
        time.sleep(0.005)
    process.join()
