"""The loop trains on a thread; the main thread shows progress until it is done."""

import threading

import clock
from torch.utils.data import DataLoader
from toy import Items, train

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2}


def fit() -> None:
    held_out = DataLoader(Items(16, ms=3), batch_size=4)
    for epoch in range(3):
        for batch in clock.steps(loader):
            train(batch)
        with clock.evaluation():
            for _ in held_out:
                pass
        epochs.append(epoch)


epochs = []
loader = DataLoader(Items(80, ms=4), batch_size=4)
thread = threading.Thread(target=fit)
thread.start()
while thread.is_alive():
    thread.join(0.05)
print(epochs)
