"""A process of the program's own reads and puts batches into a multiprocessing queue; no DataLoader."""

import multiprocessing
import time

import clock
import torch
from toy import busy, train

KNOWN = {"steps": 60, "unknown": "allowed"}


def fetch(ahead) -> None:
    for index in range(60):
        time.sleep(0.03)
        ahead.put([float(index)] * 16)
    ahead.put(None)


if __name__ == "__main__":
    ahead = multiprocessing.get_context("fork").Queue(2)
    process = multiprocessing.get_context("fork").Process(target=fetch, args=(ahead,))
    process.start()
    for batch in clock.steps(iter(ahead.get, None)):
        train(torch.tensor([batch] * 4), 8, busy)
    process.join()
