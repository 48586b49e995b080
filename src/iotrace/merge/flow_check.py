"""Both ends of every flow, on disk: how many end before they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_ROWS_AT_ONCE = 1 << 16
_AT_ONCE = 1 << 19
_ODD = 0x9E3779B97F4A7C1  # spreads the numbers, as a family's hash may be small
_NEVER = np.iinfo(np.int64).max


class FlowCheck:
    """Collects (id, time) of starts and ends. A kernel's flow starts at its launch."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._count = 0

    def add(self, numbers: Any, families: Any, times_ns: Any, are_ends: Any) -> None:
        """Add starts of flows, and their stops and ends; its number and its family identify a flow."""
        keys = numbers * _ODD ^ families
        rows = np.column_stack([keys, times_ns, are_ends.astype(np.int64)])
        self._count += len(rows)
        self._file.write(np.ascontiguousarray(rows, np.int64).data)

    def backwards(self) -> int:
        """How many flows have an end before their start; of those whose id is used once."""
        buckets = 1 + self._count // _AT_ONCE
        return sum(_backwards(self._rows_of(bucket, buckets)) for bucket in range(buckets))

    def _rows_of(self, bucket: int, buckets: int) -> Any:
        self._file.seek(0)
        pieces = []
        while data := self._file.read(_ROWS_AT_ONCE * 24):
            rows = np.frombuffer(data, np.int64).reshape(-1, 3)
            pieces.append(rows[rows[:, 0] % buckets == bucket] if buckets > 1 else rows)
        return np.concatenate(pieces) if pieces else np.empty((0, 3), np.int64)

    def close(self) -> None:
        """Give the disk space back (the file has to be removed by its owner)."""
        self._file.close()


def _backwards(rows: Any) -> int:
    if not len(rows):
        return 0
    keys, times, is_end = rows[np.argsort(rows[:, 0])].T
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    starts = np.add.reduceat(1 - is_end, first)
    earliest = np.minimum.reduceat(np.where(is_end == 1, times, _NEVER), first)
    started = np.minimum.reduceat(np.where(is_end == 0, times, _NEVER), first)
    return int(((starts == 1) & (earliest < started)).sum())
