"""cv2.imread, which reads through C's stdio: a large JPEG and small ones."""

import os

import clock
import cv2
import numpy
import torch
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/poster.jpg", "needs": ["cv2"]}

os.makedirs("data")
cv2.setNumThreads(0)
draw = numpy.random.default_rng(0)
for name, width in (("poster", 900), ("photo", 60)):
    cv2.imwrite(f"data/{name}.jpg", draw.integers(0, 255, (width, width, 3), dtype=numpy.uint8))


class Images(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        pixels = cv2.imread(f"data/{'poster' if index % 2 else 'photo'}.jpg")
        return torch.from_numpy(pixels[0, :16, 0].astype("float32"))


for batch in clock.steps(DataLoader(Images(), batch_size=2)):
    train(batch, ms=5)
