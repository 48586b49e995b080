"""The end of a file that grows, read once and in bounded pieces."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.session.reading import open_regular

_BLOCK_BYTES = 1 << 20
_FIRST_ROWS = 2048


class Tail:
    """Follows a file of lines: each whole line once, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def grown(self) -> int:
        """Count the bytes that were appended since the last `read`."""
        try:
            return max(0, os.stat(self.path).st_size - self._position)
        except OSError:  # not there yet
            return 0

    def read(self, most_bytes: int) -> tuple[bytes, tuple[int, int]]:
        """Return the whole lines since the last call, and the bytes ``[start, end)`` that were passed over.

        Where more than `most_bytes` were appended, only the newest of them are read.
        """
        first = self._position
        end = first + self.grown()
        start = max(first, end - most_bytes)
        data = self._piece(start, end) if end > first else b""
        if start > first:  # in the middle of a line
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        data = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        self._position = start + len(data)
        return data, (first, start)

    def search(self, pattern: re.Pattern[bytes], span: tuple[int, int]) -> list[bytes]:
        """Find lines in the bytes ``[start, end)`` that were passed over; `pattern` begins with a newline."""
        start, end = span
        found: list[bytes] = []
        rest = b"\n"
        while start < end:
            data = self._piece(start, min(end, start + _BLOCK_BYTES))
            if not data:
                break
            start += len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            rest = b"\n" + rest
            found += [line[1:] for line in pattern.findall(whole)]
        return found

    def _piece(self, start: int, end: int) -> bytes:
        try:
            with open_regular(self.path, inside=True) as file:
                file.seek(start)
                return file.read(end - start)
        except OSError:
            return b""


def last_rows(
    path: Path, dtype: np.dtype[Any], since_ns: int, most_bytes: int
) -> tuple[npt.NDArray[Any], bool]:
    """Return the rows at the end of `path`, back to one that lies before `since_ns`; whether it was reached.

    A row's time is its first field, plus ``duration_ns`` where it has one.
    """
    try:
        with open_regular(path, inside=True) as file:
            total = os.fstat(file.fileno()).st_size // dtype.itemsize
            most = max(1, most_bytes // dtype.itemsize)
            count = min(total, most, _FIRST_ROWS)
            while True:
                file.seek((total - count) * dtype.itemsize)
                rows = np.frombuffer(file.read(count * dtype.itemsize), dtype)
                reached = count == total or bool(len(rows) and _times(rows[:1])[0] < since_ns)
                if reached or count == min(total, most):
                    return rows[_times(rows) >= since_ns].copy(), reached
                count = min(4 * count, total, most)
    except OSError:
        return np.empty(0, dtype), True


def _times(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    names = rows.dtype.names or ()
    times: npt.NDArray[np.int64] = rows[names[0]]
    return times + rows["duration_ns"] if "duration_ns" in names else times
