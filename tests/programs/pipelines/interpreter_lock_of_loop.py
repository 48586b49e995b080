"""A thread parses text in Python code, ahead of the loop: batches lie ready, and the loop itself is slow."""

import os
import queue
import threading

import clock
import torch

KNOWN = {"steps": 200, "says": "IO517"}

os.makedirs("data")
with open("data/table.csv", "w") as file:
    file.writelines(f"{row},{row * 7 % 1000},{row * 13 % 977}\n" for row in range(6000))
ahead: queue.Queue = queue.Queue(24)


def parse() -> None:
    for _ in range(200):
        with open("data/table.csv") as file:
            rows = [line.split(",") for line in file]
        ahead.put(torch.tensor([float(first) / 1000.0 for _, first, _ in rows[:16]]))


threading.Thread(target=parse, daemon=True).start()
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(50)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
for _ in range(200):
    batch = None  # outside of the wait
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
