"""A thread hashes files ahead of the loop, in C that lets go of the interpreter: nothing slows the loop."""

import hashlib
import os
import queue
import threading

import clock
import torch
from toy import make_optimizer, model

KNOWN = {"steps": 100, "silent": "IO517"}

os.makedirs("data")
with open("data/table.csv", "w") as file:
    file.write("0123456789" * 400_000)
ahead: queue.Queue = queue.Queue(400)


def parse() -> None:
    for _ in range(400):
        with open("data/table.csv", "rb") as file:
            digest = hashlib.sha256(file.read()).digest()
        ahead.put(torch.tensor([float(each) for each in digest[:16]]))


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
