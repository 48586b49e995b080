"""The loop polls the queue that a thread fills: get_nowait, and a short sleep where it is empty."""

import queue
import threading
import time

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform"}

ahead = queue.Queue(2)


def fetch() -> None:
    for batch in DataLoader(Items(240, ms=8), batch_size=4):
        ahead.put(batch)
    ahead.put(None)


def taken():
    while True:
        try:
            return ahead.get_nowait()
        except queue.Empty:
            time.sleep(0.003)


threading.Thread(target=fetch, daemon=True).start()
for batch in clock.steps(iter(taken, None)):
    train(batch, 6, busy)
