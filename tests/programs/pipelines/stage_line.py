"""Threads of one function run the stages; the slow one spends its time in one line of what it is given."""

import queue
import threading
import time

import clock
from torch import full
from toy import train

KNOWN = {
    "steps": 60,
    "cause": "transform",
    "stage": "enlarge",
    "hot": "stage_line.py:37",
    "says": "IO230",
}

indices, read_ones, batches = queue.Queue(), queue.Queue(4), queue.Queue(2)
for index in [*range(60), None]:
    indices.put(index)


def stage(work, source: queue.Queue, sink: queue.Queue) -> None:
    while (item := source.get()) is not None:
        sink.put(work(item))
    sink.put(None)


def read(index: int):
    time.sleep(0.002)
    return full((4, 16), float(index))


def enlarge(batch):
    batch = batch + 1
    time.sleep(0.06)
    return batch


threading.Thread(target=stage, args=(read, indices, read_ones), daemon=True).start()
threading.Thread(target=stage, args=(enlarge, read_ones, batches), daemon=True).start()
for batch in clock.steps(iter(batches.get, None)):
    train(batch, 8)
