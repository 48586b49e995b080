"""The same thread and queue, but the loop itself is slow: it finds an array each time."""

import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 40, "torch": False}


def read() -> None:
    for step in range(40):
        time.sleep(0.004)
        ahead.put(numpy.full((100, 100), float(step)))
    ahead.put(None)


ahead: queue.Queue = queue.Queue(4)
threading.Thread(target=read, daemon=True).start()
weights = numpy.zeros(100)
for batch in clock.steps(clock.until_none(ahead.get)):
    weights += 1e-9 * batch.mean(axis=0)
    time.sleep(0.02)
