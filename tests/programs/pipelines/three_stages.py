"""A pool of threads reads, a pool of threads decodes, a thread collates; bounded queues lie in between."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "stage": "decode", "torch": False, "quick": True}

os.makedirs("data")
for part in range(4):
    numpy.save(f"data/part{part}.npy", numpy.full((64, 64), float(part)))

indices: queue.Queue = queue.Queue()
read_ones: queue.Queue = queue.Queue(8)
decoded: queue.Queue = queue.Queue(8)
batches: queue.Queue = queue.Queue(2)
for index in range(200):
    indices.put(index)


def read() -> None:
    while True:
        try:
            part = indices.get_nowait() % 4
        except queue.Empty:
            return
        values = numpy.load(f"data/part{part}.npy")
        time.sleep(0.002)
        read_ones.put(values)


def decode() -> None:
    while True:
        values = read_ones.get()
        time.sleep(0.03)
        decoded.put(values * 2)


def collate() -> None:
    for _ in range(50):
        samples = [decoded.get() for _ in range(4)]
        batches.put(numpy.stack(samples))
    batches.put(None)


for work in (read, read, decode, decode, decode, collate):
    threading.Thread(target=work, daemon=True).start()
for batch in clock.steps(clock.until_none(batches.get)):
    batch.mean()
    time.sleep(0.01)
