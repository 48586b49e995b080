"""WGAN: five batches for the critic, each with a step of its optimizer, then a step of the generator."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform"}

generator, critic = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
of_generator, of_critic = (torch.optim.RMSprop(part.parameters()) for part in (generator, critic))
batches = clock.steps(DataLoader(Items(240, ms=3), batch_size=4))
for _ in range(12):
    for _ in range(5):
        real = next(batches)
        loss = critic(generator(torch.randn(4, 4)).detach()).mean() - critic(real).mean()
        compute(6)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    loss = -critic(generator(torch.randn(4, 4))).mean()
    compute(10)
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
