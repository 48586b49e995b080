"""TensorFlow trains on what a generator reads, without tf.data; it evaluates behind each epoch."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import clock
import numpy
import tensorflow

KNOWN = {"steps": 60, "cause": "transform", "after": "data/part.npy", "torch": False, "needs": ["tensorflow"]}

os.makedirs("data")
numpy.save("data/part.npy", numpy.random.default_rng(0).normal(size=(64, 512)).astype("float32"))
weights = tensorflow.Variable(tensorflow.eye(512))


def batches(count: int):
    for step in range(count):
        values = numpy.load("data/part.npy") + step
        for _ in range(120):
            values = numpy.sort(values, axis=1)[:, ::-1]
        yield values


def loss_of(batch):
    hidden = tensorflow.matmul(batch, weights)
    for _ in range(20):
        hidden = tensorflow.tanh(tensorflow.matmul(hidden, weights))
    return tensorflow.reduce_mean(hidden**2)


@tensorflow.function
def train_step(batch):
    with tensorflow.GradientTape() as tape:
        loss = loss_of(batch)
    weights.assign_sub(0.001 * tape.gradient(loss, weights))
    return loss


evaluate = tensorflow.function(loss_of)
for _ in range(3):
    for batch in clock.steps(batches(20)):
        last = float(train_step(batch))
    with clock.evaluation():
        for batch in batches(8):
            last += float(evaluate(batch))
