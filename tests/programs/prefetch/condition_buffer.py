"""A ring buffer behind one condition, filled by two threads with a loader each; the loop is the consumer."""

import threading
from collections import deque

import clock
from torch.utils.data import DataLoader
from toy import Items, busy, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2}

ring, changed, open_ends = deque(), threading.Condition(), [2]


def fetch(ms: float) -> None:
    for batch in DataLoader(Items(120, ms=ms), batch_size=4):
        with changed:
            changed.wait_for(lambda: len(ring) < 3)
            ring.append(batch)
            changed.notify_all()
    with changed:
        open_ends[0] -= 1
        changed.notify_all()


def batches():
    while True:
        with changed:
            changed.wait_for(lambda: ring or not open_ends[0])
            if not ring:
                return
            batch = ring.popleft()
            changed.notify_all()
        yield batch


for ms in (12, 14):
    threading.Thread(target=fetch, args=(ms,), daemon=True).start()
for batch in clock.steps(batches()):
    train(batch, 6, busy)
