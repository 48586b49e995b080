"""MAML: adapt on a batch of the support loader, train on one of the query loader."""

import clock
import torch
from torch.utils.data import DataLoader
from toy import Items, compute, make_optimizer, model

KNOWN = {"steps": 60, "cause": "transform"}

optimizer = make_optimizer()
supports = iter(DataLoader(Items(240, ms=1), batch_size=4))
queries = iter(DataLoader(Items(240, ms=3), batch_size=4))
for _ in range(60):
    support = clock.next_(supports)
    inner = (model(support) ** 2).mean()
    compute(4)
    slope, shift = torch.autograd.grad(inner, list(model.parameters()), create_graph=True)
    query = clock.next_(queries, step=False)
    adapted = torch.nn.functional.linear(query, model.weight - 1e-9 * slope, model.bias - 1e-9 * shift)
    compute(4)
    adapted.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
