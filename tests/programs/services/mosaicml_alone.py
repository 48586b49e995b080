"""mosaicml-streaming without a DataLoader: four samples are a batch."""

import sys
import time
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

import clock
import numpy
import torch
from toy import train

# It imports torchvision for its own datasets, and PyPI's torchvision does not load beside a torch for CPUs.
for name in ("", ".datasets", ".transforms", ".transforms.functional"):
    sys.modules[f"torchvision{name}"] = module_from_spec(ModuleSpec(f"torchvision{name}", None))
sys.modules["torchvision.datasets"].VisionDataset = object
sys.modules["torchvision.transforms.functional"].to_tensor = None
from streaming import MDSWriter, StreamingDataset  # noqa: E402

KNOWN = {"steps": 60, "cause": ["transform", "unknown"], "needs": ["streaming"]}

with MDSWriter(out="data", columns={"x": "ndarray:float32"}, size_limit=1 << 14) as writer:
    for number in range(240):
        writer.write({"x": numpy.full(16, number, dtype="float32")})


class Slow(StreamingDataset):
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.from_numpy(super().__getitem__(index)["x"].copy())


iterator = iter(Slow(local="data", batch_size=4))
for _ in range(60):
    batch = [clock.next_(iterator, step=number == 0) for number in range(4)]
    train(torch.stack(batch))
