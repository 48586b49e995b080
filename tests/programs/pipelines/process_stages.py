"""A process reads, two augment, a thread of the program stacks; multiprocessing queues lie in between."""

import multiprocessing
import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 40, "cause": "transform", "stage": "augment", "torch": False}


def read(read_ones) -> None:
    for step in range(160):
        read_ones.put(numpy.load("data/one.npy") + step)
    for _ in range(2):
        read_ones.put(None)


def augment(read_ones, augmented) -> None:
    while (values := read_ones.get()) is not None:
        time.sleep(0.015)
        augmented.put(values[::-1])


def stack(augmented, batches) -> None:
    for _ in range(40):
        batches.put(numpy.stack([augmented.get() for _ in range(4)]))
    batches.put(None)


if __name__ == "__main__":
    os.makedirs("data")
    numpy.save("data/one.npy", numpy.ones((50, 50)))
    context = multiprocessing.get_context("fork")
    read_ones, augmented, batches = context.Queue(8), context.Queue(8), queue.Queue(2)
    processes = [
        context.Process(target=read, args=(read_ones,)),
        *(context.Process(target=augment, args=(read_ones, augmented)) for _ in range(2)),
    ]
    for process in processes:
        process.start()
    threading.Thread(target=stack, args=(augmented, batches), daemon=True).start()
    for batch in clock.steps(clock.until_none(batches.get)):
        batch.mean()
        time.sleep(0.005)
    for process in processes:
        process.join()
