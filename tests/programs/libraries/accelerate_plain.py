"""accelerate: the prepared loader of one process, which asks one batch ahead."""

import clock
from accelerate import Accelerator
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 60, "cause": "transform", "needs": ["accelerate"]}

optimizer = make_optimizer()
accelerator = Accelerator(cpu=True)
net, step, loader = accelerator.prepare(model, optimizer, DataLoader(Items(120, ms=3), batch_size=4))
for _ in range(2):
    for batch in clock.steps(loader):
        loss = net(batch).mean()
        compute(8)
        accelerator.backward(loss)
        step.step()
        step.zero_grad()
accelerator.end_training()
