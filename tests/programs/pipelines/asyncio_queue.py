"""A coroutine fills an asyncio.Queue as from a service (a timer stands for it), another one trains."""

import asyncio
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "unknown", "torch": False}


async def fetch(ahead: asyncio.Queue) -> None:
    for step in range(50):
        await asyncio.sleep(0.02)
        await ahead.put(numpy.full((64, 64), float(step)))


async def main() -> None:
    ahead: asyncio.Queue = asyncio.Queue(2)
    work = asyncio.create_task(fetch(ahead))
    for _ in range(50):
        asked = clock.now()
        batch = await ahead.get()
        clock.waited(asked)
        batch.mean()
        time.sleep(0.005)
    await work


asyncio.run(main())
