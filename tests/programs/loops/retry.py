"""Items fail now and then; the loop catches the error and asks the same iterator again."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 64, "cause": "transform"}


class Flaky(Items):
    def __getitem__(self, index: int) -> torch.Tensor:
        item = super().__getitem__(index)
        if index % 20 == 19:
            raise OSError(f"item {index} cannot be read")
        return item


def batches(loader):
    iterator = iter(loader)
    while True:
        asked = clock.now()
        try:
            batch = next(iterator)
        except OSError:
            clock.waited(asked, step=False)  # the loop waited, and has no batch
            continue
        except StopIteration:
            return
        clock.waited(asked)
        yield batch


for batch in batches(DataLoader(Flaky(320, ms=12), batch_size=4, num_workers=2)):
    train(batch)
