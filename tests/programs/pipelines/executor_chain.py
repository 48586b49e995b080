"""A pool of threads reads, another one decodes what the first has read, a thread collates into a queue."""

import os
import queue
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import clock
import numpy

KNOWN = {"steps": 40, "cause": "transform", "stage": "decode", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64)))
batches: queue.Queue = queue.Queue(2)


def read(index: int) -> numpy.ndarray:
    values = numpy.load("data/one.npy")
    time.sleep(0.004)
    return values + index


def decode(reading) -> numpy.ndarray:
    values = reading.result()
    time.sleep(0.02)
    return values * 2


def collate() -> None:
    with ThreadPoolExecutor(2) as readers, ThreadPoolExecutor(2) as decoders:
        pending = deque()
        for index in range(160):
            pending.append(decoders.submit(decode, readers.submit(read, index)))
            if len(pending) == 8:
                batches.put(numpy.stack([pending.popleft().result() for _ in range(4)]))
        while pending:
            batches.put(numpy.stack([pending.popleft().result() for _ in range(4)]))
    batches.put(None)


threading.Thread(target=collate, daemon=True).start()
for batch in clock.steps(clock.until_none(batches.get)):
    batch.mean()
    time.sleep(0.005)
