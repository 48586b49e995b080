"""Three threads of one function, which is given what to do: read, decode, augment. To decode is slow."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "stage": "decode", "torch": False}

os.makedirs("data")
for part in range(4):
    numpy.save(f"data/part{part}.npy", numpy.full((64, 64), float(part)))


def read(index: int) -> numpy.ndarray:
    return numpy.load(f"data/part{index % 4}.npy")


def decode(values: numpy.ndarray) -> numpy.ndarray:
    time.sleep(0.03)
    return values * 2


def augment(values: numpy.ndarray) -> numpy.ndarray:
    time.sleep(0.004)
    return values + 1


def stage(work, taken: queue.Queue, put: queue.Queue) -> None:
    while (item := taken.get()) is not None:
        put.put(work(item))
    put.put(None)


first, *others = queues = [queue.Queue(64 if not number else 4) for number in range(4)]
for index in [*range(50), None]:
    first.put(index)
for work, taken, put in zip((read, decode, augment), queues, others, strict=False):
    threading.Thread(target=stage, args=(work, taken, put), daemon=True).start()
for batch in clock.steps(clock.until_none(queues[-1].get)):
    batch.mean()
    time.sleep(0.01)
