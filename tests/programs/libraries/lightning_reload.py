"""Lightning with reload_dataloaders_every_n_epochs: the loader is made anew, the later ones are slower."""

from lightning_clock import Module, trainer
from torch.utils.data import DataLoader
from toy import Items

KNOWN = {"steps": 80, "cause": "transform", "loaders": 1, "needs": ["lightning"]}


class Curriculum(Module):
    def train_dataloader(self):
        return DataLoader(Items(80, ms=1 + self.current_epoch), batch_size=4)


fit = trainer(max_epochs=4, reload_dataloaders_every_n_epochs=1)
fit.fit(Curriculum())
print("training steps", fit.global_step)
