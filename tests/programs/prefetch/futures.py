"""The next batch is asked for in a pool of one thread, while the loop trains on this one."""

from concurrent.futures import ThreadPoolExecutor

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform"}

iterator = iter(DataLoader(Items(240, ms=8), batch_size=4))
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(next, iterator, None)
    while True:
        asked = clock.now()
        if (batch := future.result()) is None:
            break
        clock.waited(asked)
        future = pool.submit(next, iterator, None)
        train(batch, 6, busy)
