"""A pool of three threads shares one iterator, behind a lock; the loop takes the futures in their order."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform"}

iterator = iter(DataLoader(Items(240, ms=8), batch_size=4))
turn = threading.Lock()


def fetch():
    with turn:
        batch = next(iterator, None)
    return None if batch is None else batch + 1


with ThreadPoolExecutor(3) as pool:
    futures = deque(pool.submit(fetch) for _ in range(3))
    while True:
        asked = clock.now()
        if (batch := futures.popleft().result()) is None:
            break
        clock.waited(asked)
        futures.append(pool.submit(fetch))
        train(batch, 6, busy)
