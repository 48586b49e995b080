"""A GAN: discriminator and generator, an optimizer each, both trained on every batch."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute

KNOWN = {"steps": 60, "cause": "transform"}

generator, discriminator = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
of_generator, of_discriminator = (torch.optim.Adam(part.parameters()) for part in (generator, discriminator))
for real in clock.steps(DataLoader(Items(240, ms=3), batch_size=4)):
    fake = generator(torch.randn(4, 4))
    loss = discriminator(fake.detach()).mean() - discriminator(real).mean()
    compute(5)
    of_discriminator.zero_grad()
    loss.backward()
    of_discriminator.step()
    loss = -discriminator(fake).mean()
    compute(5)
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
