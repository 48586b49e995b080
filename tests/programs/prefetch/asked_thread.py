"""The loop asks a thread for negatives by their numbers, and waits for them, beside its own queue."""

import queue
import threading
import time

import clock
import torch
from toy import train

KNOWN = {"steps": 60, "loaders": 2}

ahead: queue.Queue = queue.Queue(4)
work, negatives = queue.Queue(), queue.Queue()


def fetch() -> None:
    for number in range(60):
        time.sleep(0.02)
        ahead.put(torch.full((4, 16), float(number)))
    ahead.put(None)


def choose() -> None:
    while (number := work.get()) is not None:
        time.sleep(0.03)
        negatives.put(torch.full((4, 16), float(number)))


threading.Thread(target=fetch, daemon=True).start()
threading.Thread(target=choose, daemon=True).start()
for number, batch in enumerate(clock.steps(iter(ahead.get, None))):
    work.put(number)
    asked = clock.now()
    other = negatives.get()
    clock.waited(asked, step=False)
    train(batch + other, 6)
work.put(None)
