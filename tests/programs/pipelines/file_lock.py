"""Three processes read a file, each under the lock of a file beside it: one of them reads at a time."""

import fcntl
import multiprocessing
import os
import time

import clock
import numpy

KNOWN = {"steps": 48, "says": "IO233", "stage": "fetch", "torch": False}


def fetch(ahead) -> None:
    for _ in range(16):
        with open("data/one.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = numpy.load("data/one.npy")
            time.sleep(0.01)
        ahead.put(values)


if __name__ == "__main__":
    os.makedirs("data")
    numpy.save("data/one.npy", numpy.ones((64, 64)))
    ahead = multiprocessing.Queue(4)
    readers = [multiprocessing.Process(target=fetch, args=(ahead,)) for _ in range(3)]
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
