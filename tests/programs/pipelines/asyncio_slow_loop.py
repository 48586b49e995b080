"""A coroutine trains for long; what it awaits lies ready each time, and it sleeps, too, by a timer."""

import asyncio
import time
from collections import deque

import clock
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False}


def load(step: int) -> numpy.ndarray:
    time.sleep(0.004)
    return numpy.full((100, 100), float(step))


async def main() -> None:
    ahead = deque()
    for step in range(43):
        if step < 40:
            ahead.append(asyncio.create_task(asyncio.to_thread(load, step)))
        if step < 3:
            await asyncio.sleep(0)
            continue
        asked = clock.now()
        batch = await ahead.popleft()
        clock.waited(asked)
        batch.mean()
        time.sleep(0.01)
        await asyncio.sleep(0.01)


asyncio.run(main())
