"""Four threads parse text in Python code: by the interpreter's lock one of them works at a time.

To parse takes longer than what the loop's own thread waits for its turn: some 5 ms for each of the others.
"""

import os
import queue
import threading

import clock
import numpy  # noqa: F401  # which imports ctypes, by which iotrace reads the lock's account

KNOWN = {
    "steps": 48,
    "cause": "transform",
    "after": "data/table.csv",
    "stage": "feed",
    "says": "IO232",
    "torch": False,
}

os.makedirs("data")
with open("data/table.csv", "w") as file:
    file.writelines(f"{row},{row * 7 % 1000},{row * 13 % 977}\n" for row in range(120000))


def parse() -> list:
    with open("data/table.csv") as file:
        text = file.read()
    rows = []
    for line in text.split("\n")[:-1]:
        number, first, second = line.split(",")
        rows.append((int(number), float(first) / 1000.0, float(second) / 977.0))
    return rows


def feed() -> None:
    for _ in range(12):
        ahead.put(parse())


ahead: queue.Queue = queue.Queue(4)
for _ in range(4):
    threading.Thread(target=feed, daemon=True).start()
for _ in range(48):
    asked = clock.now()
    rows = ahead.get()
    clock.waited(asked)
    sum(row[1] for row in rows[:100])
    del rows  # outside of the wait
