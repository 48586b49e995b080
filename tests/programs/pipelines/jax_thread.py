"""A thread trains with JAX beside a loop that computes: nothing tells what the loop waits for."""

import threading
import time

import clock
import jax
import numpy

KNOWN = {"steps": 40, "unknown": "always", "torch": False, "needs": ["jax"]}

train_step = jax.jit(jax.grad(lambda weights, batch: ((batch @ weights) ** 2).mean()))


def learn() -> None:
    weights = jax.numpy.eye(64)
    for step in range(40):
        weights = weights - 0.01 * train_step(weights, numpy.full((64, 64), step, "float32"))
        time.sleep(0.01)


thread = threading.Thread(target=learn)
thread.start()
for _ in clock.steps(range(40)):
    time.sleep(0.02)
thread.join()
