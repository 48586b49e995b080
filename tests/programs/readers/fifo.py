"""Storage that answers late: records come through a named pipe, 3 ms apart."""

import os
import threading
import time

import clock
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "read", "file": "data/records", "quick": True}

os.makedirs("data")
os.mkfifo("data/records")


def answer() -> None:
    with open("data/records", "wb", buffering=0) as pipe:
        for _ in range(240):
            time.sleep(0.003)
            pipe.write(bytes(64))


class Records(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return torch.frombuffer(bytearray(pipe.read(64)), dtype=torch.float32)


threading.Thread(target=answer, daemon=True).start()
pipe = open("data/records", "rb", buffering=0)  # noqa: SIM115
for batch in clock.steps(DataLoader(Records(), batch_size=4)):
    train(batch)
