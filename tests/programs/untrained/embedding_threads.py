"""Inference in a pool: the main thread takes batches, threads compute, results come in their order."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, model

KNOWN = {"steps": 60, "cause": "transform"}


@torch.inference_mode()
def embed(batch):
    compute(24)
    return model(batch)


results, running = [], deque()
with ThreadPoolExecutor(2) as pool:
    for batch in clock.steps(DataLoader(Items(240, ms=1), batch_size=4)):
        running.append(pool.submit(embed, batch))
        if len(running) > 2:
            results.append(running.popleft().result())
results += [one.result() for one in running]
print(len(results))
