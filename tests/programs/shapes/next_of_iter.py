"""Each step takes the first batch of a new iterator: the workers start each time."""

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 30, "loaders": 1}

loader = DataLoader(Items(16, ms=5), batch_size=4, shuffle=True, num_workers=1)
for _ in range(30):
    iterator = iter(loader)
    batch = clock.next_(iterator)
    train(batch, 15)
    del iterator
