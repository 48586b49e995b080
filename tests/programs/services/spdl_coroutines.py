"""SPDL: a stage that is a coroutine, as with a client of an object store; two of its calls at once."""

import asyncio

import clock
import torch
from spdl.pipeline import PipelineBuilder
from toy import busy, train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["spdl"]}


async def fetch(number):
    await asyncio.sleep(0.012)
    return torch.full((16,), float(number))


builder = PipelineBuilder().add_source(range(240)).pipe(fetch, concurrency=2).aggregate(4)
pipeline = builder.pipe(torch.stack).add_sink(2).build(num_threads=2)
with pipeline.auto_stop():
    for batch in clock.steps(pipeline):
        train(batch, 6, busy)
