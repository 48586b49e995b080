"""A queue of tokens lets two threads work in turns: the loop waits for its turn, not for data."""

import queue
import threading
import time

import clock

KNOWN = {"steps": 40, "unknown": "always", "torch": False}

ours, theirs = queue.Queue(), queue.Queue()


def other() -> None:
    while theirs.get():
        time.sleep(0.02)
        ours.put(True)


threading.Thread(target=other, daemon=True).start()
for _ in range(40):
    theirs.put(True)
    asked = clock.now()
    ours.get()
    clock.waited(asked)
    time.sleep(0.01)
theirs.put(False)
