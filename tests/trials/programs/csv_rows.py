"""Each sample reads its own CSV file, which a binary format would spare: the program has to be edited."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

FOLDER, FILES = Path("tables"), 40


class Tables(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        table = pd.read_csv(FOLDER / f"{index % FILES:02}.csv")
        return torch.from_numpy(table.to_numpy()[:2].astype(np.float32))


if __name__ == "__main__":
    if not FOLDER.exists():
        FOLDER.mkdir()
        for number in range(FILES):
            values = np.random.default_rng(number).normal(size=(20_000, 8))
            pd.DataFrame(values).to_csv(FOLDER / f"{number:02}.csv", index=False)
    train(DataLoader(Tables(), 2, num_workers=1))
