"""The thread hands over by queue.SimpleQueue, whose wait nothing can see: the wait is unknown."""

import queue
import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "unknown": "always"}

ahead = queue.SimpleQueue()


def fetch() -> None:
    for batch in DataLoader(Items(240, ms=8), batch_size=4):
        ahead.put(batch)
    ahead.put(None)


threading.Thread(target=fetch, daemon=True).start()
for batch in clock.steps(iter(ahead.get, None)):
    train(batch, 6, busy)
