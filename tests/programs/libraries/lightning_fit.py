"""Lightning's fit: two workers, validation after each epoch."""

from lightning_clock import Module, trainer
from torch.utils.data import DataLoader
from toy import Items

KNOWN = {"steps": 60, "cause": "transform", "loaders": 2, "needs": ["lightning"]}

training = DataLoader(Items(80, ms=3), batch_size=4, shuffle=True)
validation = DataLoader(Items(24, ms=3), batch_size=4)
fit = trainer(max_epochs=3)
fit.fit(Module(), training, validation)
print("training steps", fit.global_step)
