"""A prefetcher as many repositories have it: a thread, a slot, two events."""

import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform"}


class Prefetcher:
    def __init__(self, loader: DataLoader) -> None:
        self.batch, self.full, self.empty = None, threading.Event(), threading.Event()
        self.empty.set()
        threading.Thread(target=self.fetch, args=(iter(loader),), daemon=True).start()

    def fetch(self, iterator) -> None:
        while True:
            batch = next(iterator, None)
            self.empty.wait()
            self.empty.clear()
            self.batch = batch
            self.full.set()
            if batch is None:
                return

    def __iter__(self):
        while True:
            self.full.wait()
            self.full.clear()
            batch = self.batch
            self.empty.set()
            if batch is None:
                return
            yield batch


for batch in clock.steps(Prefetcher(DataLoader(Items(240, ms=8), batch_size=4))):
    train(batch, 6, busy)
