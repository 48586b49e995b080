"""Two semaphores give the loop and a thread that evaluates their turns: nothing is handed over."""

import os
import threading
import time

import clock
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False}

os.makedirs("data")
numpy.save("data/own.npy", numpy.ones((64, 64)))
numpy.save("data/val.npy", numpy.ones((64, 64)))
mine, its, scores = threading.Semaphore(1), threading.Semaphore(0), []


def evaluate() -> None:
    for _ in range(40):
        its.acquire()
        held_out = numpy.load("data/val.npy")
        time.sleep(0.015)
        scores.append(float(held_out.mean()))
        mine.release()


threading.Thread(target=evaluate, daemon=True).start()
for _ in range(40):
    values = numpy.load("data/own.npy")
    mine.acquire()
    clock.begin()
    values.mean()
    time.sleep(0.002)
    its.release()
