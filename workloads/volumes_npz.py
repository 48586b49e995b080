"""A segmentation network trained on slabs of volumes in compressed .npz files.

The volumes are made on first use. A member of an .npz file cannot be read in part: each slab decompresses
its whole volume. One volume, patient_1, was saved with a finer grid, 27 times the voxels.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDES = [64, 192, 64, 64]  # voxels along each edge, by patient
SLAB, CROP = 8, 48


def make_data(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for patient, side in enumerate(SIDES):
        coarse = generator.normal(size=(side // 8,) * 3).astype(np.float32)
        image = np.kron(coarse, np.ones((8, 8, 8), np.float32))
        image += generator.normal(scale=0.1, size=image.shape).astype(np.float32)
        path = directory / f"patient_{patient}.npz"
        if path.exists():
            continue
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, image=image, label=(image > 0.5).astype(np.uint8))
        partial.rename(path)


class Slabs(Dataset):
    """Random slabs of a volume and their labels."""

    def __init__(self, directory: Path, samples: int) -> None:
        self.paths = sorted(directory.glob("patient_*.npz"))
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = np.random.default_rng(index)
        with np.load(self.paths[index % len(self.paths)]) as archive:
            image, label = archive["image"], archive["label"]
        first = int(generator.integers(0, len(image) - SLAB + 1))
        slab = (slice(first, first + SLAB), slice(CROP), slice(CROP))
        image, label = image[slab], label[slab]
        image = (image - image.mean()) / (image.std() + 1e-6)
        return torch.from_numpy(image)[None], torch.from_numpy(label.astype(np.int64))


def network(width: int = 4) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 1
    for _ in range(2):
        layers += [nn.Conv3d(inputs, width, 3, padding=1), nn.InstanceNorm3d(width), nn.LeakyReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Conv3d(width, 2, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/volumes"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    make_data(options.data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is small, and threads that spin slow the workers
    context = options.start_method if options.workers else None
    loader = DataLoader(
        Slabs(options.data, options.steps * options.batch_size),
        options.batch_size,
        num_workers=options.workers,
        multiprocessing_context=context,
    )
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
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
