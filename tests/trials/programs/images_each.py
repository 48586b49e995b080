"""Each sample decodes an image of its own, far larger than what is trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from loop import train
from PIL import Image
from torch.utils.data import DataLoader, Dataset

FOLDER, FILES, SIDE = Path("images"), 160, 768


class Images(Dataset):
    def __len__(self) -> int:
        return FILES

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(FOLDER / f"{index:03}.jpg") as image:
            small = image.convert("RGB").crop((0, 0, 32, 32))
        return torch.from_numpy(np.asarray(small, np.float32))


if __name__ == "__main__":
    if not FOLDER.exists():
        FOLDER.mkdir()
        generator = np.random.default_rng(0)
        for number in range(FILES):
            coarse = generator.integers(0, 255, (SIDE // 8, SIDE // 8, 3), np.uint8)
            image = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
            Image.fromarray(image).save(FOLDER / f"{number:03}.jpg", quality=90)
    train(DataLoader(Images(), 4, num_workers=1))
