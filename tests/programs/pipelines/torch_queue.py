"""A process reads ahead, and hands tensors over by a queue of torch.multiprocessing: in shared memory."""

import os
import time

import clock
import numpy
import torch
import torch.multiprocessing

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy"}


def fetch(ahead, over) -> None:
    for step in range(50):
        values = torch.from_numpy(numpy.load("data/one.npy") + step)
        time.sleep(0.02)
        ahead.put(values)
    ahead.put(None)
    over.wait()  # it holds what it has sent


if __name__ == "__main__":
    os.makedirs("data", exist_ok=True)
    numpy.save("data/one.npy", numpy.ones((200, 200), "float32"))
    context = torch.multiprocessing.get_context("fork")
    ahead, over = context.Queue(2), context.Event()
    maker = context.Process(target=fetch, args=(ahead, over))
    maker.start()
    model = torch.nn.Linear(200, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in clock.steps(clock.until_none(ahead.get)):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.004)
        del batch
    over.set()
    maker.join()
