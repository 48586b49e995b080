"""Lightning's CombinedLoader, whose second loader is the slow one, with validation within the epoch."""

from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning_clock import Module, trainer
from torch.utils.data import DataLoader
from toy import Items

KNOWN = {"steps": 60, "cause": "transform", "needs": ["lightning"]}


class Both(Module):
    def training_step(self, batch, _):
        return super().training_step(batch["a"], 0) + self.loss(batch["b"])


loaders = {name: DataLoader(Items(120, ms), batch_size=4) for name, ms in (("a", 0.5), ("b", 4))}
fit = trainer(max_epochs=2, val_check_interval=0.5)
fit.fit(Both(), CombinedLoader(loaders, "max_size_cycle"), DataLoader(Items(16, ms=2), batch_size=4))
print("training steps", fit.global_step)
