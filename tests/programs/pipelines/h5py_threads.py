"""Four threads read compressed HDF5, each by a handle of its own: h5py lets one of them in at a time."""

import os
import queue
import threading
import time

import clock
import h5py
import numpy

KNOWN = {
    "steps": 48,
    "cause": ["read", "decode", "transform"],  # h5py keeps the interpreter's lock, too
    "file": "data/volume.h5",
    "stage": "read",
    "says": "IO231",
    "torch": False,
}

os.makedirs("data")
with h5py.File("data/volume.h5", "w") as file:
    noise = numpy.random.default_rng(0).integers(0, 8, (8, 1024, 1024), dtype="int32")
    file.create_dataset("x", data=noise, chunks=(1, 1024, 1024), compression="gzip")


def read(own: int) -> None:
    with h5py.File("data/volume.h5", "r") as volume:
        values = volume["x"]
        for step in range(own, 48, 4):
            ahead.put(values[step % 8])


ahead: queue.Queue = queue.Queue(4)
for number in range(4):
    threading.Thread(target=read, args=(number,), daemon=True).start()
for _ in range(48):
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    batch.mean()
    del batch  # outside of the wait
    time.sleep(0.002)
