"""Three sources, a future each: the loop trains on whatever comes first, and asks that source again."""

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 3}

sources = [iter(DataLoader(Items(80, ms=ms), batch_size=4)) for ms in (20, 25, 30)]
with ThreadPoolExecutor(3) as pool:
    asked_of = {pool.submit(next, source, None): source for source in sources}
    while asked_of:
        asked = clock.now()
        done, _ = wait(asked_of, return_when=FIRST_COMPLETED)
        future = next(iter(done))
        source = asked_of.pop(future)
        if (batch := future.result()) is None:
            continue
        clock.waited(asked)
        asked_of[pool.submit(next, source, None)] = source
        train(batch, 4, busy)
