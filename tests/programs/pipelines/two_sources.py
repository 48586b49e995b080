"""Images come from one queue and labels from another, one of each a turn: the images are slow."""

import os
import queue
import threading
import time

import clock
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/image.npy", "torch": False}

os.makedirs("data")
for name in ("image", "label"):
    numpy.save(f"data/{name}.npy", numpy.ones((64, 64)))
images, labels = queue.Queue(2), queue.Queue(8)


def feed(name: str, ahead: queue.Queue, seconds: float) -> None:
    for _ in range(50):
        values = numpy.load(f"data/{name}.npy")
        time.sleep(seconds)
        ahead.put(values)


threading.Thread(target=feed, args=("image", images, 0.03), daemon=True).start()
threading.Thread(target=feed, args=("label", labels, 0.001), daemon=True).start()
for _ in range(50):
    asked = clock.now()
    image = images.get()
    clock.waited(asked)
    asked = clock.now()
    label = labels.get()
    clock.waited(asked, step=False)
    (image * label).mean()
    time.sleep(0.01)
