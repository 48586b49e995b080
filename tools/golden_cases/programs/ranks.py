"""A rank of a job that trains on a file of its own; rank 0 of a first start fails where asked to.

python ranks.py [fail]
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

DATA = Path(f"values-{os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))}.bin")


class Values(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        with DATA.open("rb", buffering=0) as file:
            for _ in range(4):
                file.read(64)
        return torch.ones(4)


def main() -> None:
    torch.set_num_threads(1)
    DATA.write_bytes(bytes(4096))
    weight = torch.ones(4, requires_grad=True)
    for number, batch in enumerate(DataLoader(Values(), 2, num_workers=1)):
        (batch * weight).sum().backward()
        if number == 6 and "fail" in sys.argv and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os._exit(3)


if __name__ == "__main__":
    main()
