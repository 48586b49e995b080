"""One thread fetches, another augments, the loop takes from the second queue."""

import queue
import threading
import time

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60}

fetched, augmented = queue.Queue(2), queue.Queue(2)


def fetch() -> None:
    for batch in DataLoader(Items(240, ms=2), batch_size=4):
        fetched.put(batch)
    fetched.put(None)


def augment() -> None:
    while (batch := fetched.get()) is not None:
        time.sleep(0.03)
        augmented.put(batch + 1)
    augmented.put(None)


for work in (fetch, augment):
    threading.Thread(target=work, daemon=True).start()
for batch in clock.steps(iter(augmented.get, None)):
    train(batch, 6, busy)
