"""A thread hashes files ahead of the loop, in C that lets go of the interpreter: nothing slows the loop."""

import hashlib
import os
import queue
import threading

import clock
import torch

KNOWN = {"steps": 200, "silent": "IO517"}

os.makedirs("data")
with open("data/table.csv", "w") as file:
    file.write("0123456789" * 400_000)
ahead: queue.Queue = queue.Queue(24)


def parse() -> None:
    for _ in range(200):
        with open("data/table.csv", "rb") as file:
            digest = hashlib.sha256(file.read()).digest()
        ahead.put(torch.tensor([float(each) for each in digest[:16]]))


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
