"""PyTorch Geometric: graphs of a dataset that takes its time, by its DataLoader."""

import time

import clock
import torch
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from toy import train

KNOWN = {"steps": 60, "cause": "transform", "needs": ["torch_geometric"]}


class Graphs(Dataset):
    def len(self):
        return 240

    def get(self, index):
        time.sleep(0.003)
        edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        return Data(x=torch.full((3, 16), float(index)), edge_index=edges)


for batch in clock.steps(DataLoader(Graphs(), batch_size=4)):
    train(batch.x)
