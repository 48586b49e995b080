"""The loader gives indices alone; the loop itself reads and decodes the images that they name."""

import clock
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from toy import train

KNOWN = {"steps": 40, "reads": "photo.png"}

Image.fromarray(np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)).save("photo.png")


def read(index: int) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open("photo.png"))).float()[0, :16, 0] + index


for indices in clock.steps(DataLoader(range(160), batch_size=4)):
    train(torch.stack([read(int(index)) for index in indices]))
