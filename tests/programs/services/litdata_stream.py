"""litdata: a dataset of chunks, by its StreamingDataLoader."""

import os
import time

import clock
import torch
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from toy import train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["litdata"]}

os.makedirs("data")
writer = BinaryWriter("data", chunk_size=60)
for number in range(240):
    writer[number] = torch.full((16,), float(number))
writer.done()
writer.merge()


class Slow(StreamingDataset):
    def __getitem__(self, index):
        time.sleep(0.006)
        return super().__getitem__(index)


for batch in clock.steps(StreamingDataLoader(Slow("data"), batch_size=4, num_workers=1)):
    train(batch)
