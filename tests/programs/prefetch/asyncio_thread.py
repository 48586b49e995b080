"""An event loop on a thread of its own fetches ahead; the loop that trains waits at a future of it."""

import asyncio
import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "unknown": "allowed"}

events = asyncio.new_event_loop()
threading.Thread(target=events.run_forever, daemon=True).start()


async def fetch(ahead: asyncio.Queue) -> None:
    iterator = iter(DataLoader(Items(240, ms=8), batch_size=4))
    while (batch := await asyncio.to_thread(next, iterator, None)) is not None:
        await ahead.put(batch)
    await ahead.put(None)


async def begin() -> asyncio.Queue:
    ahead = asyncio.Queue(2)
    ahead.fetching = asyncio.create_task(fetch(ahead))
    return ahead


def submitted(awaitable):
    return asyncio.run_coroutine_threadsafe(awaitable, events)


ahead = submitted(begin()).result()
while True:
    future = submitted(ahead.get())  # to ask is the loop's own work; it waits at the future
    asked = clock.now()
    if (batch := future.result()) is None:
        break
    clock.waited(asked)
    train(batch, 6, busy)
events.call_soon_threadsafe(events.stop)
