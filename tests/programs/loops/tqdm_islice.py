"""enumerate over a progress bar over a slice of the loader, which is begun anew where it ends."""

import itertools
import os

import clock
from torch.utils.data import DataLoader
from toy import Items, train
from tqdm import tqdm

KNOWN = {"steps": 60, "cause": "transform", "needs": ["tqdm"]}

loader = DataLoader(Items(88, ms=18), batch_size=4, num_workers=2)


def endless():
    while True:
        yield from clock.steps(loader)


with open(os.devnull, "w") as nowhere:
    for _number, batch in enumerate(tqdm(itertools.islice(endless(), 60), total=60, file=nowhere)):
        train(batch)
