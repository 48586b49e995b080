"""A fit of Lightning with validation, then test and predict.

python lightning_fit.py; with a word after it the callback of iotrace records.
"""

import logging
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
import lightning.pytorch as pl  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Ones(Dataset):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4) * index


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def validation_step(self, batch, index):
        self.layer(batch)

    def test_step(self, batch, index):
        self.layer(batch)

    def predict_step(self, batch, index):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


def main() -> None:
    callbacks = []
    if len(sys.argv) > 1:
        from iotrace.lightning import IotraceCallback

        callbacks = [IotraceCallback(output=sys.argv[1], report=False)]
    silent = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, callbacks=callbacks, **dict.fromkeys(silent, False)
    )
    model = Model()
    trainer.fit(model, DataLoader(Ones(32), 2, num_workers=1), DataLoader(Ones(6), 2))
    if not callbacks:
        trainer.test(model, DataLoader(Ones(8), 2), verbose=False)
        trainer.predict(model, DataLoader(Ones(6), 2))


if __name__ == "__main__":
    main()
