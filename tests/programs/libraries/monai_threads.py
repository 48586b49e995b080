"""MONAI's ThreadDataLoader: a thread iterates over the loader, the loop takes from its buffer."""

import sys

sys.modules["tensorflow"] = None  # tensorboard would import it, for half a minute
import clock  # noqa: E402
from monai.data import Dataset, ThreadDataLoader  # noqa: E402
from toy import Items, busy, train  # noqa: E402

KNOWN = {"steps": 60, "cause": "transform", "unknown": "allowed", "needs": ["monai"]}

items = Items(240, ms=8)
loader = ThreadDataLoader(Dataset(range(240), items.__getitem__), batch_size=4, num_workers=0, buffer_size=2)
for batch in clock.steps(loader):
    train(batch.as_tensor() if hasattr(batch, "as_tensor") else batch, 6, busy)
