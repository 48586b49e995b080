"""accelerate's dispatcher under torchrun: rank 0 reads for both ranks."""

import clock
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 60, "ranks": 2, "needs": ["accelerate"]}

optimizer = make_optimizer()
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
net, step, loader = accelerator.prepare(model, optimizer, DataLoader(Items(240, ms=3), batch_size=4))
for _ in range(2):
    for batch in clock.steps(loader):
        loss = net(batch).mean()
        compute(12)
        accelerator.backward(loss)
        step.step()
        step.zero_grad()
accelerator.end_training()
