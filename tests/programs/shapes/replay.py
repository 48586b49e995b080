"""Reinforcement learning: processes step environments, a loader samples the replay buffer thrice a turn."""

import multiprocessing
import random
import time
from collections import deque

import clock
import torch
from torch.utils.data import DataLoader, IterableDataset
from toy import compute, make_optimizer, model

KNOWN = {"steps": 60, "cause": "transform"}


def environment(pipe) -> None:
    while (action := pipe.recv()) is not None:
        time.sleep(0.01)
        pipe.send([float(action)] * 16)


class Replay(IterableDataset):
    def __init__(self) -> None:
        self.buffer = deque(maxlen=500)

    def __iter__(self):
        while True:
            time.sleep(0.002)
            yield torch.tensor(random.choice(self.buffer))


context = multiprocessing.get_context("fork")
pipes = [context.Pipe() for _ in range(2)]
workers = [context.Process(target=environment, args=(theirs,)) for _, theirs in pipes]
for worker in workers:
    worker.start()
replay, optimizer = Replay(), make_optimizer()
samples = iter(DataLoader(replay, batch_size=4))
for turn in range(20):
    for ours, _ in pipes:
        ours.send(turn)
    replay.buffer.extend(ours.recv() for ours, _ in pipes)
    for _ in range(3):
        batch = clock.next_(samples)
        optimizer.zero_grad()
        loss = model(batch).mean()
        compute(5)
        loss.backward()
        optimizer.step()
for ours, _ in pipes:
    ours.send(None)
for worker in workers:
    worker.join()
