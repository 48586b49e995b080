"""Coroutines on a thread await a server, decode in an executor, and have another task put it into a queue."""

import asyncio
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import clock
import numpy
import torch

KNOWN = {"steps": 40, "cause": "unknown", "says": "IO236"}

os.makedirs("data")
for part in range(3):
    numpy.save(f"data/part{part}.npy", numpy.full((64, 64), float(part)))
ahead: queue.Queue = queue.Queue(4)
torch.set_num_threads(1)


def decode(path: str) -> torch.Tensor:
    values = torch.from_numpy(numpy.load(path)).float()
    time.sleep(0.005)
    return values


async def one(step: int, asked: asyncio.Semaphore, pool: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    async with asked:
        await asyncio.sleep(0.06)  # a server answers
    batch = await loop.run_in_executor(pool, decode, f"data/part{step % 3}.npy")
    await loop.run_in_executor(None, ahead.put, batch)


async def produce() -> None:
    asked = asyncio.Semaphore(1)
    with ThreadPoolExecutor(2) as pool:
        await asyncio.gather(*(one(step, asked, pool) for step in range(40)))
    ahead.put(None)


threading.Thread(target=lambda: asyncio.run(produce()), daemon=True).start()
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for batch in clock.steps(clock.until_none(ahead.get)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
