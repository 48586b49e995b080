"""lmdb: compressed values of one memory-mapped database, inflated after the read."""

import zlib

import clock
import lmdb
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/data.mdb", "needs": ["lmdb"]}

values = numpy.random.default_rng(0).normal(size=100000).astype("float32")
with lmdb.open("data", map_size=1 << 28) as base, base.begin(write=True) as writer:
    for key in range(20):
        writer.put(b"%d" % key, zlib.compress(values.tobytes(), 1))


class Blobs(Dataset):
    base = None

    def __len__(self):
        return 120

    def __getitem__(self, index):
        if self.base is None:
            self.base = lmdb.open("data", readonly=True, lock=False)
        with self.base.begin() as reader:
            packed = reader.get(b"%d" % (index % 20))
        return torch.from_numpy(numpy.frombuffer(zlib.decompress(packed), "float32")[:16].copy())


for batch in clock.steps(DataLoader(Blobs(), batch_size=2)):
    train(batch, ms=5)
