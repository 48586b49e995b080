"""Both ends of every arrow, on disk: how many end before they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_ROWS_AT_ONCE = 1 << 16
_AT_ONCE = 1 << 19


class Arrows:
    """Collects (id, time) of starts and ends. A kernel's arrow starts at its launch."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._count = 0

    def add(self, numbers: Any, times_ns: Any, are_ends: Any) -> None:
        """Ends of the arrows with these numbers; columns."""
        rows = np.column_stack([numbers, times_ns, are_ends.astype(np.int64)])
        self._count += len(rows)
        self._file.write(np.ascontiguousarray(rows, np.int64).data)

    def backwards(self) -> int:
        """How many arrows end before they start; ids that are used again count by order of time."""
        buckets = 1 + self._count // _AT_ONCE
        found = 0
        for bucket in range(buckets):
            found += _backwards(self._rows_of(bucket, buckets))
        return found

    def _rows_of(self, bucket: int, buckets: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        self._file.seek(0)
        pieces = []
        while data := self._file.read(_ROWS_AT_ONCE * 24):
            rows = np.frombuffer(data, np.int64).reshape(-1, 3)
            pieces.append(rows[rows[:, 0] % buckets == bucket] if buckets > 1 else rows)
        return np.concatenate(pieces) if pieces else np.empty((0, 3), np.int64)

    def close(self) -> None:
        """Give the disk space back (the file has to be removed by its owner)."""
        self._file.close()


def _backwards(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> int:
    """Ends that come before the start of the same id, of ids with one start and one end."""
    order = np.lexsort((rows[:, 2], rows[:, 0]))
    number, time, is_end = rows[order].T
    first = np.flatnonzero(np.diff(number, prepend=-1))
    size = np.diff(np.append(first, len(number)))
    pairs = first[size == 2]
    sound = (is_end[pairs] == 0) & (is_end[pairs + 1] == 1) if len(pairs) else np.zeros(0, np.bool_)
    return int((sound & (time[pairs + 1] < time[pairs])).sum()) if len(pairs) else 0
