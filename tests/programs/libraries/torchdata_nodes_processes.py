"""torchdata's nodes with a pool of processes, in front of a thread that prefetches batches."""

import clock
import torch
from torchdata.nodes import Batcher, Loader, MapStyleWrapper, ParallelMapper, Prefetcher
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["torchdata"]}

if __name__ == "__main__":
    items = Items(240, ms=16)
    node = ParallelMapper(
        MapStyleWrapper(range(240), range(240)), items.__getitem__, num_workers=2, method="process"
    )
    loader = Loader(Prefetcher(Batcher(node, batch_size=4), prefetch_factor=2))
    for batch in clock.steps(loader):
        train(torch.stack(batch), 6, busy)
