"""A GAN between two domains: the loader of each is asked within one step, the second is the slow one."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform"}

to_b, judge = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
of_mapping, of_judge = (torch.optim.Adam(part.parameters()) for part in (to_b, judge))
photos = DataLoader(Items(240, ms=0.5), batch_size=4)
paintings = clock.steps(DataLoader(Items(240, ms=4), batch_size=4), step=False)
for photo in clock.steps(photos):
    loss = -judge(to_b(photo)).mean()
    compute(4)
    of_mapping.zero_grad()
    loss.backward()
    of_mapping.step()
    loss = judge(to_b(photo).detach()).mean() - judge(next(paintings)).mean()
    compute(4)
    of_judge.zero_grad()
    loss.backward()
    of_judge.step()
