"""The loop hands its results to threads that write, and waits at a condition for room: no wait for data."""

import os
import threading
import time
from collections import deque

import clock
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False}

os.makedirs("data")
left, changed = deque(), threading.Condition()


def write() -> None:
    for _ in range(20):
        with changed:
            while not left:
                changed.wait()
            number, values = left.popleft()
            changed.notify_all()
        numpy.save(f"data/{number}.npy", values)
        time.sleep(0.03)


for _ in range(2):
    threading.Thread(target=write, daemon=True).start()
for step in range(40):
    clock.begin()
    values = numpy.ones((64, 64)) * step
    time.sleep(0.004)
    with changed:
        while len(left) >= 2:
            changed.wait()
        left.append((step, values))
        changed.notify_all()
