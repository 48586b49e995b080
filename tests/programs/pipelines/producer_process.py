"""Two processes of the program's own read and put arrays into one multiprocessing queue."""

import multiprocessing
import os
import time

import clock
import numpy

KNOWN = {"steps": 60, "cause": "transform", "after": "data/slow.npy", "stage": "fetch", "torch": False}


def fetch(ahead, own: int) -> None:
    for step in range(own, 60, 2):
        name = "slow" if step % 4 < 2 else "quick"
        values = numpy.load(f"data/{name}.npy") + step
        time.sleep(0.06 if name == "slow" else 0.02)
        ahead.put(values)


if __name__ == "__main__":
    os.makedirs("data")
    for name in ("slow", "quick"):
        numpy.save(f"data/{name}.npy", numpy.ones((100, 100)))
    context = multiprocessing.get_context("fork")
    ahead = context.Queue(4)
    processes = [context.Process(target=fetch, args=(ahead, own)) for own in range(2)]
    for process in processes:
        process.start()
    for _ in range(60):
        asked = clock.now()
        batch = ahead.get()
        clock.waited(asked)
        batch.mean()
        time.sleep(0.005)
    for process in processes:
        process.join()
