"""Each of several workers has cv2 start a thread for each CPU."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from loop import train
from torch.utils.data import DataLoader, Dataset


class Blurred(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        image = np.full((512, 512, 3), index % 255, np.uint8)
        for _ in range(4):
            image = cv2.GaussianBlur(image, (15, 15), 3)
        return torch.from_numpy(image[:2, :2, 0].astype(np.float32))


if __name__ == "__main__":
    cv2.setNumThreads(16)
    train(DataLoader(Blurred(), 2, num_workers=2))
