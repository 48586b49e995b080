"""Rows on disk by thread, read back in order of time: what lanes need, without holding a file's events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# FLOW_NEXT: an arrow's end that means the slice that begins next; ELSEWHERE: on no thread's row.
SLICE, FLOW, FLOW_NEXT, BEGIN, END, MARK, ELSEWHERE = range(7)
ROW = np.dtype([("start", "<i8"), ("end", "<i8"), ("ordinal", "<i8"), ("kind", "<i4"), ("size", "<i4")])
Rows = npt.NDArray[Any]


class Spill:
    """Appends sorted pieces; `windows` merges them again.

    A window holds the rows that no later piece can precede. In files that are nearly in order, as all
    profilers write them, that is a few pieces at a time.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._extents: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # first start, offset, count
        self._rows = 0

    def add(self, thread: Any, start: Any, end: Any, ordinal: Any, kind: Any, size: Any) -> None:
        """Rows as columns: times in ns, `ordinal` and `size` as the sink gave them."""
        if not len(thread):
            return
        rows = np.empty(len(thread), ROW)
        order = np.lexsort((ordinal, -end, start, thread))
        for name, column in zip(ROW.names or (), (start, end, ordinal, kind, size), strict=True):
            rows[name] = column[order]
        threads = thread[order]
        bounds = np.flatnonzero(np.diff(threads, prepend=-1))
        for first, last in zip(bounds.tolist(), [*bounds[1:].tolist(), len(rows)], strict=True):
            extent = (int(rows["start"][first]), self._rows + first, last - first)
            self._extents[int(threads[first])].append(extent)
        self._file.write(rows.data)
        self._rows += len(rows)

    @property
    def rows(self) -> int:
        """How many there are, of all threads."""
        return self._rows

    def threads(self) -> list[int]:
        """The threads that have rows."""
        return sorted(self._extents)

    def windows(self, thread: int) -> Iterator[Rows]:
        """The thread's rows in order: by start, the longest first, then as they came."""
        self._file.flush()
        pending = np.empty(0, ROW)
        for first_start, offset, count in sorted(self._extents[thread]):
            split = int(np.searchsorted(pending["start"], first_start, side="left"))
            if split > len(pending) // 2:
                yield pending[:split]
                pending = pending[split:]
            self._file.seek(offset * ROW.itemsize)
            piece = np.frombuffer(self._file.read(count * ROW.itemsize), ROW)
            later = not len(pending) or pending["start"][-1] < first_start
            pending = np.concatenate([pending, piece])
            if not later:
                order = np.lexsort((pending["ordinal"], -pending["end"], pending["start"]))
                pending = pending[order]
        if len(pending):
            yield pending

    def close(self) -> None:
        """Give the disk space back (the file has to be removed by its owner)."""
        self._file.close()
