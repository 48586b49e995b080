"""JAX trains on what a generator reads, without a thread: a compiled step, and an evaluation each epoch."""

import os

import clock
import jax
import numpy

KNOWN = {"steps": 60, "cause": "transform", "after": "data/part.npy", "torch": False, "needs": ["jax"]}

os.makedirs("data")
numpy.save("data/part.npy", numpy.random.default_rng(0).normal(size=(64, 512)).astype("float32"))


def batches(count: int):
    for step in range(count):
        values = numpy.load("data/part.npy") + step
        for _ in range(120):
            values = numpy.sort(values, axis=1)[:, ::-1]
        yield values


def loss_of(weights, batch):
    hidden = batch @ weights
    for _ in range(20):
        hidden = jax.numpy.tanh(hidden @ weights)
    return (hidden**2).mean()


@jax.jit
def train_step(weights, batch):
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    return weights - 0.001 * gradient, loss


evaluate = jax.jit(loss_of)
weights = jax.numpy.eye(512)
for _ in range(3):
    for batch in clock.steps(batches(20)):
        weights, loss = train_step(weights, batch)
        last = float(loss)
    with clock.evaluation():
        for batch in batches(8):
            last += float(evaluate(weights, batch))
