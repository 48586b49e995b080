"""PIL: PNGs of photographs' size, and one of a poster's."""

import os

import clock
import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from toy import train

KNOWN = {"steps": 60, "cause": "decode", "file": "data/poster.png"}

os.makedirs("data")
draw = numpy.random.default_rng(0)
for name, width in (("poster", 1400), ("photo0", 60), ("photo1", 60)):
    pixels = draw.integers(0, 255, (width, width, 3), dtype=numpy.uint8)
    Image.fromarray(pixels).save(f"data/{name}.png")


class Images(Dataset):
    def __len__(self):
        return 180

    def __getitem__(self, index):
        with Image.open(f"data/{('poster', 'photo0', 'photo1')[index % 3]}.png") as image:
            pixels = numpy.asarray(image.convert("RGB"))
        return torch.from_numpy(pixels[0, :16, 0].astype("float32"))


for batch in clock.steps(DataLoader(Images(), batch_size=3, num_workers=1)):
    train(batch, ms=5)
