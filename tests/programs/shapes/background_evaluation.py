"""A thread evaluates a copy of the model on a loader of its own, while the loop trains on."""

import copy
import threading

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, model, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2}


def evaluate(model: torch.nn.Module) -> None:
    losses.append([model(batch).mean().item() for batch in held_out])


losses, threads = [], []
loader, held_out = DataLoader(Items(80, ms=4), batch_size=4), DataLoader(Items(24, ms=5), batch_size=4)
for _epoch in range(3):
    for batch in clock.steps(loader):
        train(batch)
    threads.append(threading.Thread(target=evaluate, args=(copy.deepcopy(model),)))
    threads[-1].start()
for thread in threads:
    thread.join()
print(len(losses))
