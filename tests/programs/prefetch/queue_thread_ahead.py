"""A thread fetches ahead and keeps up: the producer waits for its loader, the loop waits for nothing."""

import queue
import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 30}

ahead = queue.Queue(4)


def fetch() -> None:
    for batch in DataLoader(Items(120, ms=1), batch_size=4):
        ahead.put(batch)
    ahead.put(None)


threading.Thread(target=fetch, daemon=True).start()
for batch in clock.steps(iter(ahead.get, None)):
    train(batch, 40, busy)
