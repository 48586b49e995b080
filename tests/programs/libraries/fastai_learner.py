"""fastai's Learner over its own DataLoader, with validation after each epoch."""

import clock
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform", "needs": ["fastai"]}


class Pairs(Items):
    def __getitem__(self, index):
        return super().__getitem__(index), torch.zeros(1)


class Timed(DataLoader):
    def __iter__(self):
        return clock.steps(super().__iter__())


class Slow(torch.nn.Linear):
    def forward(self, x):
        compute(8)
        return super().forward(x)


class Silent(Learner):
    def _do_epoch_validate(self, *arguments, **options):
        with clock.evaluation():
            super()._do_epoch_validate(*arguments, **options)


loaders = DataLoaders(Timed(Pairs(120, ms=3), bs=4), DataLoader(Pairs(24, ms=3), bs=4))
learner = Silent(loaders, Slow(16, 1), loss_func=torch.nn.functional.mse_loss, lr=1e-9)
with learner.no_logging():
    learner.fit(2)
