"""A GAN that two queues feed, which one function fills in two threads: one of them is slow."""

import queue
import threading
import time

import clock
import torch
from toy import compute

KNOWN = {"steps": 60, "cause": "transform", "stage": "feed in thread paintings", "loaders": 2}

photos, paintings = queue.Queue(4), queue.Queue(4)


def feed(ahead: queue.Queue, milliseconds: float) -> None:
    for _ in range(60):
        time.sleep(milliseconds / 1e3)
        ahead.put(torch.randn(4, 16))


threading.Thread(target=feed, args=(photos, 1), name="photos", daemon=True).start()
threading.Thread(target=feed, args=(paintings, 25), name="paintings", daemon=True).start()
to_b, judge = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
of_mapping, of_judge = (torch.optim.Adam(part.parameters()) for part in (to_b, judge))
for _ in range(60):
    asked = clock.now()
    photo = photos.get()
    clock.waited(asked)
    of_mapping.zero_grad()
    (-judge(to_b(photo)).mean()).backward()
    of_mapping.step()
    compute(4)
    asked = clock.now()
    painting = paintings.get()
    clock.waited(asked, step=False)
    of_judge.zero_grad()
    (judge(to_b(photo).detach()).mean() - judge(painting).mean()).backward()
    of_judge.step()
    compute(4)
