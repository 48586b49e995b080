"""tf.data feeding a NumPy loop: no torch anywhere."""

import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import clock
import numpy
import tensorflow

KNOWN = {"steps": 60, "cause": "transform", "torch": False, "needs": ["tensorflow"]}


def slow(number):
    time.sleep(0.003)
    return numpy.full(16, number, dtype="float32")


def items():
    for number in range(240):
        yield slow(number)


source = tensorflow.data.Dataset.from_generator(
    items, output_signature=tensorflow.TensorSpec((16,), tensorflow.float32)
)
weights = numpy.zeros(16)
for batch in clock.steps(source.batch(4)):
    weights += 1e-9 * batch.numpy().mean(axis=0)
    time.sleep(0.008)
