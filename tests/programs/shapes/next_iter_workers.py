"""next(iter(loader)) with a worker: each step starts a process."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 25}

loader = DataLoader(Items(16, ms=3), batch_size=4, shuffle=True, num_workers=1, prefetch_factor=2)
for _ in range(25):
    train(clock.next_(iter(loader)))
