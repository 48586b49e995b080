"""Each sample reads some rows of a Parquet file whose only row group is decoded whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from loop import train
from torch.utils.data import DataLoader, Dataset

ROWS, GROUPS, TAKEN = 400_000, 4, 1000
PATH = Path("table.parquet")


class Rows(Dataset):
    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> torch.Tensor:
        with pq.ParquetFile(PATH) as file:
            first = (index * 7919) % (file.metadata.num_rows // TAKEN)
            rows = file.metadata.row_group(0).num_rows
            group = first * TAKEN // rows
            table = file.read_row_group(group)
            start = first * TAKEN - group * rows
            values = table.slice(start, min(TAKEN, len(table) - start))["a"].to_numpy()
        return torch.from_numpy(np.resize(values, 8))


if __name__ == "__main__":
    if not PATH.exists():
        values = np.random.default_rng(0).normal(size=(4, ROWS))
        table = pa.table(dict(zip("abcd", values, strict=True)))
        pq.write_table(table, PATH, row_group_size=ROWS // GROUPS, compression="zstd")
    train(DataLoader(Rows(), 2, num_workers=1))
