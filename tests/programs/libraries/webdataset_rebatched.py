"""webdataset: the batches of the workers are taken apart, shuffled and batched anew."""

import io
import os
import time

import clock
import numpy
import torch
import webdataset
from toy import train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["webdataset"]}

os.makedirs("data")
for shard in range(2):
    with webdataset.TarWriter(f"data/{shard}.tar") as tar:
        for number in range(120):
            file = io.BytesIO()
            numpy.save(file, numpy.full(16, number, dtype="float32"))
            tar.write({"__key__": f"{shard}-{number}", "npy": file.getvalue()})


def decode(sample):
    time.sleep(0.012)
    return (torch.from_numpy(sample["npy"]).float(),)


shards = webdataset.WebDataset("data/{0..1}.tar", shardshuffle=False).decode().map(decode).batched(2)
loader = webdataset.WebLoader(shards, batch_size=None, num_workers=1).unbatched().shuffle(8).batched(4)
for (batch,) in clock.steps(loader):
    train(batch)
