"""Three processes each have the lock of a file of their own: none waits for another."""

import fcntl
import multiprocessing
import os
import time

import clock
import numpy

KNOWN = {"steps": 48, "cause": "transform", "stage": "fetch", "silent": "IO233", "torch": False}


def fetch(ahead, own: int) -> None:
    for _ in range(16):
        with open(f"data/{own}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = numpy.load("data/one.npy")
            time.sleep(0.04)
        ahead.put(values)


if __name__ == "__main__":
    os.makedirs("data")
    numpy.save("data/one.npy", numpy.ones((64, 64)))
    ahead = multiprocessing.Queue(4)
    readers = [multiprocessing.Process(target=fetch, args=(ahead, own)) for own in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(48):
        asked = clock.now()
        batch = ahead.get()
        clock.waited(asked)
        batch.mean()
        time.sleep(0.002)
    for reader in readers:
        reader.join()
