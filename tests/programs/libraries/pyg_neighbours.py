"""PyTorch Geometric: a NodeLoader whose process that trains fetches the features of what workers sample."""

import time

import clock
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput
from toy import train

KNOWN = {"steps": 60, "cause": ["collate", "transform"], "needs": ["torch_geometric"]}


class Sampler(BaseSampler):
    def sample_from_nodes(self, inputs, **_):
        none = torch.empty(0, dtype=torch.long)
        return SamplerOutput(inputs.node, none, none, none, metadata=(inputs.input_id, inputs.time))

    def sample_from_edges(self, *_, **__):
        raise NotImplementedError


def slow(data):
    until = time.perf_counter() + 0.01  # a transform of what the training process has fetched
    while time.perf_counter() < until:
        pass
    return data


nodes = Data(x=torch.rand(240, 16), edge_index=torch.tensor([[0, 1], [1, 0]]))
loader = NodeLoader(nodes, Sampler(), batch_size=4, num_workers=1, filter_per_worker=False, transform=slow)
for batch in clock.steps(loader):
    train(batch.x)
