"""Each sample opens a tar archive anew, whose members are listed each time: the program has to be edited."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

PATH, MEMBERS = Path("samples.tar"), 400


class Members(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        with tarfile.open(PATH) as archive:
            member = archive.getmembers()[index]
            found = archive.extractfile(member)
            assert found is not None
            return torch.from_numpy(np.load(io.BytesIO(found.read())))


if __name__ == "__main__":
    if not PATH.exists():
        with tarfile.open(PATH, "w") as archive:
            for number in range(MEMBERS):
                content = io.BytesIO()
                np.save(content, np.full(512, number, np.float32))
                about = tarfile.TarInfo(f"{number}.npy")
                about.size = len(content.getvalue())
                archive.addfile(about, io.BytesIO(content.getvalue()))
    train(DataLoader(Members(), 2, num_workers=1), compute_s=0.005)
