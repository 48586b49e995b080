"""A semaphore gives the producer its turn when the loop has worked: what it makes then is all of the wait."""

import os
import threading
import time
from queue import SimpleQueue

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((200, 200)))
turn, given = threading.Semaphore(1), SimpleQueue()


def feed() -> None:
    for _ in range(50):
        turn.acquire()
        values = numpy.load("data/one.npy")
        time.sleep(0.01)
        given.put(values)
    given.put(None)


threading.Thread(target=feed, daemon=True).start()
for batch in clock.steps(clock.until_none(given.get)):
    batch.mean()
    time.sleep(0.02)
    turn.release()
