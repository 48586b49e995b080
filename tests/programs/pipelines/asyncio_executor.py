"""A coroutine trains; what it awaits is read ahead in threads by run_in_executor."""

import asyncio
import os
import time
from collections import deque

import clock
import numpy

KNOWN = {"steps": 60, "cause": "transform", "after": "data/one.npy", "torch": False}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((100, 100)))


def load(step: int) -> numpy.ndarray:
    values = numpy.load("data/one.npy") + step
    time.sleep(0.03)
    return values


async def main() -> None:
    loop, ahead = asyncio.get_running_loop(), deque()
    for step in range(62):
        if step < 60:
            ahead.append(loop.run_in_executor(None, load, step))
        if step < 2:
            continue
        asked = clock.now()
        batch = await ahead.popleft()
        clock.waited(asked)
        batch.mean()
        time.sleep(0.005)


asyncio.run(main())
