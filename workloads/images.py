"""A small convolutional network trained on JPEG files, one directory to a class.

The images are made on first use. The class ``harbour`` came from another camera: its images have 150 times
the pixels of the others, and every one of them is decoded to be cut down to the same small crop.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = {"field": 256, "forest": 256, "harbour": 3136, "road": 256}  # side in pixels
PER_CLASS, CROP = 6, 64


def make_data(directory: Path) -> None:
    generator = np.random.default_rng(0)
    for name, side in CLASSES.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        for number in range(PER_CLASS):
            coarse = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            path = directory / name / f"{number:03}.jpg"
            if path.exists():
                continue
            image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            image.save(partial, "JPEG", quality=90)
            partial.rename(path)


class Images(Dataset):
    """Random crops, flipped or not, of images chosen at random; the class is the directory."""

    def __init__(self, directory: Path, samples: int) -> None:
        self.paths = sorted(directory.glob("*/*.jpg"))
        self.classes = sorted(CLASSES)
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        path = self.paths[generator.integers(len(self.paths))]
        with Image.open(path) as image:
            side = image.width // 4
            left, top = (int(edge) for edge in generator.integers(0, 3 * side, 2))
            box = (left, top, left + side, top + side)
            image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box)
        if generator.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 255)
        return pixels.permute(2, 0, 1), self.classes.index(path.parent.name)


def network(width: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, len(CLASSES)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/images"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    make_data(options.data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    context = options.start_method if options.workers else None
    loader = DataLoader(
        Images(options.data, options.steps * options.batch_size),
        options.batch_size,
        num_workers=options.workers,
        multiprocessing_context=context,
    )
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    started, steps = time.perf_counter(), 0
    for image, label in loader:
        loss = nn.functional.cross_entropy(model(image.to(device)), label.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 10 == 0:
            print(f"step {steps} loss {loss.item():.4f}")
    print(f"trained {steps} steps in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
