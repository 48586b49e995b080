"""Two executors whose tasks call one function: the tasks of the second one are slow."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import clock
import numpy

KNOWN = {"steps": 60, "cause": "transform", "after": "data/b.npy", "torch": False, "loaders": 2}

os.makedirs("data")
for name in "ab":
    numpy.save(f"data/{name}.npy", numpy.ones((64, 64)))


def load(name: str, seconds: float) -> numpy.ndarray:
    values = numpy.load(f"data/{name}.npy")
    time.sleep(seconds)
    return values


images, labels = ThreadPoolExecutor(1, "images"), ThreadPoolExecutor(1, "labels")
of_images = [images.submit(load, "a", 0.001) for _ in range(4)]
of_labels = [labels.submit(load, "b", 0.03) for _ in range(4)]
for _ in range(60):
    asked = clock.now()
    image = of_images.pop(0).result()
    clock.waited(asked)
    asked = clock.now()
    label = of_labels.pop(0).result()
    clock.waited(asked, step=False)
    of_images.append(images.submit(load, "a", 0.001))
    of_labels.append(labels.submit(load, "b", 0.03))
    (image * label).mean()
    time.sleep(0.01)
