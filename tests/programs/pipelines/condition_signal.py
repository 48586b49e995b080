"""The loop waits at a condition for a thread that paces it: that hands over no data."""

import threading
import time

import clock
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False}

beat, ticks = threading.Condition(), [0]


def pace() -> None:
    for _ in range(40):
        time.sleep(0.02)
        with beat:
            ticks[0] += 1
            beat.notify()


threading.Thread(target=pace, daemon=True).start()
values = numpy.ones((64, 64))
for step in range(40):
    with beat:
        while ticks[0] <= step:
            beat.wait()
    clock.begin()
    values.mean()
    time.sleep(0.004)
