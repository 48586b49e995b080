"""A pool of threads maps an augmentation over the loader, which one of its threads iterates."""

import time
from multiprocessing.pool import ThreadPool

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "unknown": "allowed"}


def augment(batch):
    time.sleep(0.004)
    return batch + 1


with ThreadPool(2) as pool:
    for batch in clock.steps(pool.imap(augment, DataLoader(Items(240, ms=8), batch_size=4))):
        train(batch, 6, busy)
