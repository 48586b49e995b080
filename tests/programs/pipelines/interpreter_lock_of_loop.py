"""A thread parses text in Python code, ahead of the loop: batches lie ready, and the loop itself is slow."""

import os
import queue
import threading

import clock
import torch
from toy import make_optimizer, model

KNOWN = {"steps": 100, "says": "IO517"}

os.makedirs("data")
with open("data/table.csv", "w") as file:
    file.writelines(f"{row},{row * 7 % 1000},{row * 13 % 977}\n" for row in range(2000))
ahead: queue.Queue = queue.Queue(400)


def parse() -> None:
    for _ in range(400):
        with open("data/table.csv") as file:
            rows = [line.split(",") for line in file]
        ahead.put(torch.tensor([float(first) / 1000.0 for _, first, _ in rows[:16]]))


threading.Thread(target=parse, daemon=True).start()
optimizer = make_optimizer()
for _ in range(100):
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    optimizer.zero_grad()
    for _ in range(40):
        batch = batch + 1e-6  # each call lets go of the interpreter, and waits for it
    model(batch).sum().backward()
    optimizer.step()
