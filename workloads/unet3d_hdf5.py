"""A 3-D U-Net trained on volumes in HDF5 files, as in medical image segmentation.

The volumes are made on first use. One of them, case_02, was stored by another tool: the whole volume is
a single compressed chunk, so that each small crop has to decompress all of it.
"""

import argparse
import os
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CASES, SIDE, CROP = 4, 192, 32


def make_data(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for case in range(CASES):
        path = directory / f"case_{case:02}.h5"
        if path.exists():
            continue
        coarse = generator.normal(size=(SIDE // 8,) * 3).astype(np.float32)
        image = np.kron(coarse, np.ones((8, 8, 8), np.float32))
        image += generator.normal(scale=0.1, size=image.shape).astype(np.float32)
        whole = case == 2
        partial = path.with_suffix(".partial")
        with h5py.File(partial, "w") as file:
            options = {
                "chunks": (SIDE,) * 3 if whole else (CROP,) * 3,
                "compression": "gzip",
                "compression_opts": 6 if whole else 1,
            }
            file.create_dataset("image", data=image, **options)
            file.create_dataset("label", data=(image > 0.5).astype(np.uint8), **options)
        partial.rename(path)


class Volumes(Dataset):
    def __init__(self, directory: Path, crops: int) -> None:
        self.paths = sorted(directory.glob("case_*.h5"))
        self.crops = crops

    def __len__(self) -> int:
        return self.crops

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = np.random.default_rng(index)
        z, y, x = (int(generator.integers(0, SIDE // CROP)) * CROP for _ in range(3))
        crop = (slice(z, z + CROP), slice(y, y + CROP), slice(x, x + CROP))
        with h5py.File(self.paths[index % len(self.paths)], "r") as file:
            image, label = file["image"][crop], file["label"][crop]
        image = (image - image.mean()) / (image.std() + 1e-6)
        if generator.random() < 0.5:
            image, label = image[::-1].copy(), label[::-1].copy()
        return torch.from_numpy(image)[None], torch.from_numpy(label.astype(np.int64))


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU(inplace=True)
    )


class UNet3D(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.up_first = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.join_second, self.join_first = block(4 * width, 2 * width), block(2 * width, width)
        self.head = nn.Conv3d(width, 2, 1)
        self.down = nn.MaxPool3d(2)

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        first = self.first(volume)
        second = self.second(self.down(first))
        bottom = self.bottom(self.down(second))
        second = self.join_second(torch.cat([self.up_second(bottom), second], 1))
        return self.head(self.join_first(torch.cat([self.up_first(second), first], 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/unet3d"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--start-method", choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()

    make_data(options.data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # A core for each worker: threads that spin beside a busy worker slow both.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - options.workers))
    dataset = Volumes(options.data, options.steps * options.batch_size)
    context = options.start_method if options.workers else None
    loader = DataLoader(
        dataset, options.batch_size, num_workers=options.workers, multiprocessing_context=context
    )
    model = UNet3D().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
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
