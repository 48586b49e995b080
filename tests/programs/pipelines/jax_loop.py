"""A JAX loop: threads read ahead into a queue, a compiled step consumes."""

import os
import queue
import threading
import time

import clock
import jax
import numpy

KNOWN = {"steps": 50, "cause": "transform", "after": "data/one.npy", "torch": False, "needs": ["jax"]}

os.makedirs("data")
numpy.save("data/one.npy", numpy.ones((64, 64), "float32"))
ahead: queue.Queue = queue.Queue(2)


def fetch() -> None:
    for step in range(50):
        values = numpy.load("data/one.npy") + step
        time.sleep(0.02)
        ahead.put(values)


step = jax.jit(lambda weights, batch: weights - 0.01 * (batch @ batch).mean())
weights = jax.numpy.zeros(())
threading.Thread(target=fetch, daemon=True).start()
for _ in range(50):
    asked = clock.now()
    batch = ahead.get()
    clock.waited(asked)
    weights = step(weights, batch)
    weights.block_until_ready()
