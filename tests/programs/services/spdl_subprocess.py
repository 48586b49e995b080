"""SPDL: a pipeline in a process of its own, as its documentation advises; the loop trains in this one."""

import time

import clock
import numpy
import torch
from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess
from toy import busy, train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["spdl"]}


def make(number):
    time.sleep(0.008)
    return numpy.full(16, number, "float32")


if __name__ == "__main__":
    builder = PipelineBuilder().add_source(range(240)).pipe(make).aggregate(4).pipe(numpy.stack).add_sink(2)
    for batch in clock.steps(run_pipeline_in_subprocess(builder.get_config(), num_threads=2)):
        train(torch.from_numpy(batch), 6, busy)
