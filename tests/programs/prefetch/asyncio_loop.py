"""An event loop: batches come from a thread by run_in_executor, awaited by the coroutine that trains."""

import asyncio

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "unknown": "allowed"}


async def main() -> None:
    iterator = iter(DataLoader(Items(240, ms=8), batch_size=4))
    loop = asyncio.get_running_loop()
    pending = loop.run_in_executor(None, next, iterator, None)
    while True:
        asked = clock.now()
        batch = await pending
        if batch is None:
            return
        clock.waited(asked)
        pending = loop.run_in_executor(None, next, iterator, None)
        train(batch, 6, busy)


asyncio.run(main())
