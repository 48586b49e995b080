"""What wrote gloo_rank0.json.gz and gloo_rank1.json.gz: two ranks, the loader of rank 1 slower.

OMP_NUM_THREADS=1 python -m torch.distributed.run --nproc-per-node 2 make_gloo_traces.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay_s)
        return torch.ones(256)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(Slow(0.01 * rank + 0.0005), batch_size=4, num_workers=1)
schedule = torch.profiler.schedule(wait=2, warmup=1, active=4, repeat=1)
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=schedule,
    record_shapes=True,
    on_trace_ready=lambda done: done.export_chrome_trace(f"gloo_rank{rank}.json.gz"),
) as profiler:
    for number, batch in enumerate(loader):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
        if number == 8:
            break
dist.destroy_process_group()
