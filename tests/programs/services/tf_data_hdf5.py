"""tf.data reads compressed HDF5 by py_function, several calls at once; a NumPy loop takes the batches."""

import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import clock
import h5py
import numpy
import tensorflow

KNOWN = {
    "steps": 40,
    "cause": "decode",
    "file": "data/volume.h5",
    "torch": False,
    "needs": ["tensorflow", "h5py"],
}

os.makedirs("data")
with h5py.File("data/volume.h5", "w") as file:
    noise = numpy.random.default_rng(0).integers(0, 8, (16, 512, 512), dtype="int32")
    file.create_dataset("x", data=noise, chunks=(1, 512, 512), compression="gzip")


def read(index) -> numpy.ndarray:
    with h5py.File("data/volume.h5", "r") as volume:
        return volume["x"][int(index) % 16].mean(axis=0).astype("float32")


def load(index):
    return tensorflow.py_function(read, [index], tensorflow.float32)


source = tensorflow.data.Dataset.range(160).map(load, num_parallel_calls=2).batch(4).prefetch(1)
weights = numpy.zeros(512)
for batch in clock.steps(source):
    weights += 1e-9 * batch.numpy().mean(axis=0)
    time.sleep(0.004)
