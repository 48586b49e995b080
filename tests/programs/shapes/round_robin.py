"""Two loaders with 2 and 0 workers take turns: each gives a batch, and its step follows at once."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 40, "cause": "transform", "loaders": 2}

loaders = [
    DataLoader(Items(160, ms=ms), batch_size=4, num_workers=workers) for ms, workers in ((14, 2), (3, 0))
]
sources = [iter(loader) for loader in loaders]
for number in range(80):
    train(clock.next_(sources[number % 2], step=number % 2 == 0), 6)
