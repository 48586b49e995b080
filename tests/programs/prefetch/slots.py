"""Free slots go to the thread that fetches by a queue.Queue, full ones come back by a SimpleQueue."""

import queue
import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "unknown": "always"}

slots, free, full = [None] * 2, queue.Queue(), queue.SimpleQueue()
for slot in range(2):
    free.put(slot)


def fetch() -> None:
    for batch in DataLoader(Items(240, ms=8), batch_size=4):
        slot = free.get()
        slots[slot] = batch
        full.put(slot)
    full.put(None)


threading.Thread(target=fetch, daemon=True).start()
for slot in clock.steps(iter(full.get, None)):
    train(slots[slot], 6, busy)
    free.put(slot)
