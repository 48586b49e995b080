"""A C library that reads by fread: here libc itself, through ctypes."""

import ctypes
import os

import clock
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "read", "file": "data/large.bin"}

os.makedirs("data")
for name, size in (("large", 24 << 20), ("small", 4096)):
    with open(f"data/{name}.bin", "wb") as file:
        file.write(bytes(size))
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
space = ctypes.create_string_buffer(1 << 20)


class Blobs(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        file = libc.fopen(b"data/large.bin" if index % 2 else b"data/small.bin", b"rb")
        while libc.fread(space, 1, len(space), file) == len(space):
            pass
        libc.fclose(file)
        return torch.frombuffer(space.raw[:64], dtype=torch.float32)


for batch in clock.steps(DataLoader(Blobs(), batch_size=2)):
    train(batch, ms=5)
