"""Lightning's fit on a loader without length, which Lightning asks one batch ahead."""

from lightning_clock import Module, trainer
from torch.utils.data import DataLoader
from toy import Stream

KNOWN = {"steps": 60, "cause": "transform", "needs": ["lightning"]}

fit = trainer(max_epochs=2)
fit.fit(Module(), DataLoader(Stream(120, ms=8), batch_size=4, num_workers=1))
print("training steps", fit.global_step)
