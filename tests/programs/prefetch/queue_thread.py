"""A thread fetches ahead into a queue; the loop waits at the queue."""

import queue
import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform"}

ahead = queue.Queue(2)


def fetch() -> None:
    for batch in DataLoader(Items(240, ms=8), batch_size=4):
        ahead.put(batch)
    ahead.put(None)


threading.Thread(target=fetch, daemon=True).start()
for batch in clock.steps(iter(ahead.get, None)):
    train(batch, 6, busy)
