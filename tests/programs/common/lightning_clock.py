"""The clock inside Lightning's loops: its profiler hears of each ask, a callback of steps and validation."""

from __future__ import annotations

import logging
import sys
import tempfile

import clock
import lightning
import torch
from lightning.pytorch.profilers import Profiler
from toy import compute

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class _Asks(Profiler):
    def start(self, action_name: str) -> None:
        if action_name.endswith("train_dataloader_next"):
            self.asked = clock.now()

    def stop(self, action_name: str) -> None:
        ended = sys.exc_info()[0] is StopIteration
        if action_name.endswith("train_dataloader_next") and not ended:
            clock.waited(self.asked, step=False)


class _Steps(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        clock.begin()

    def on_validation_start(self, trainer, module) -> None:
        self.began = clock.now()

    def on_validation_end(self, trainer, module) -> None:
        clock.evaluated(self.began)


class Module(lightning.LightningModule):
    """The toy model; `ms` is what a step computes."""

    def __init__(self, ms: float = 8) -> None:
        super().__init__()
        self.layer, self.ms = torch.nn.Linear(16, 1), ms

    def loss(self, batch) -> torch.Tensor:
        return self.layer(batch).mean()

    def training_step(self, batch, _):
        compute(self.ms)
        return self.loss(batch)

    def validation_step(self, batch, _):
        compute(2)
        self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)


def trainer(**options) -> lightning.Trainer:
    """Make a quiet trainer that this clock follows."""
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        profiler=_Asks(),
        callbacks=[_Steps()],
        default_root_dir=tempfile.gettempdir(),
        **options,
    )
